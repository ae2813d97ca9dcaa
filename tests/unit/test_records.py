"""The run folder: whole lines and whole files, or a clear error."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import pytest

from lockstep.errors import BadInput
from lockstep.train.records import CannotWrite, Records, create_folder, write_document
from lockstep.train.schema.rank_jsonl import NotFiniteLine, StepLine, read_rank
from lockstep.train.schema.result_json import Failed, read_result
from lockstep.train.schema.run_json import read_setup
from lockstep.train.schema.scalars import SCHEMA
from tests.unit.report.values import header


def step(number: int, loss: float = 1.5) -> StepLine:
    return StepLine(step=number, epoch=0, loss=loss, weight=2.0, total=0.1, began=1.0)


def test_lines_and_files(tmp_path: Path) -> None:
    lines = [header(3, 4), step(0), NotFiniteLine(step=1, epoch=0)]
    records = Records(tmp_path, 3)
    for line in lines:
        records.write(line)
    records.close()
    records.close()
    assert read_rank(tmp_path / "rank-3.jsonl") == lines
    failed = Failed(rank=3, step=1, finite=False, why="the loss is nan")
    write_document(tmp_path / "result.json", failed)
    assert read_result(tmp_path) == failed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank-3.jsonl", "result.json"]


def test_what_a_reader_would_refuse_is_not_written(tmp_path: Path) -> None:
    records = Records(tmp_path, 0)
    with pytest.raises(ValueError, match=r"Expected `float`, got `null` - at `\$\.loss`"):
        records.write(step(0, loss=float("nan")))
    records.close()
    assert read_rank(tmp_path / "rank-0.jsonl") == []
    with pytest.raises(BadInput, match="is not Unicode text; use another name"):
        write_document(tmp_path / "result.json", Failed(rank=0, step=0, finite=True, why="\udc80"))
    assert not (tmp_path / "result.json").exists()


def test_two_ranks_cannot_share_a_file(tmp_path: Path) -> None:
    Records(tmp_path, 0).close()
    with pytest.raises(CannotWrite, match="exists"):
        Records(tmp_path, 0)


def test_a_folder_that_exists_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="exists already: choose another --out"):
        create_folder(tmp_path)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot make the output folder"):
        create_folder(tmp_path / "file" / "run")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "the JSON is cut short"),
        (b"", "the JSON is cut short"),
        (b"\xff\xfe", "it is not JSON"),
        (b'{"schema": "\xff"}', "it is not UTF-8 text"),
        (
            b'{"schema": 99}',
            f"schema version 99, and this is Lockstep .*, which reads schema version {SCHEMA}: use the version",
        ),
        (b'{"schema": 1, "versions": {"lockstep": "0.0.9"}}', r"schema version 1 \(Lockstep 0\.0\.9\), and"),
        (b"[]", r"the content is \[\], expected an object"),
        (b'{"a": ' + b"[" * 100_000, "it is nested too deeply"),
        (b'{"schema": ' + b"9" * 5000 + b"}", "schema does not fit, which is out of range"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(BadInput, match=rf"run\.json.*{words}"):
        read_setup(tmp_path)
    with pytest.raises(BadInput, match=r"is .* a run folder"):
        read_setup(tmp_path / "none")


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "rank-0.jsonl").write_text('{"kind": "not-finite", "step": 0, "epoch": 0}\n{"ste\n')
    with pytest.raises(BadInput, match=r"rank-0\.jsonl, line 2: the JSON is cut short"):
        read_rank(tmp_path / "rank-0.jsonl")


@pytest.mark.parametrize("left", ["", '{"ste', '{"kind": "step"}'])
def test_half_a_line_at_the_end_is_left_out(tmp_path: Path, left: str) -> None:
    (tmp_path / "rank-0.jsonl").write_text('{"kind": "not-finite", "step": 0, "epoch": 0}\n' + left)
    assert read_rank(tmp_path / "rank-0.jsonl") == [NotFiniteLine(step=0, epoch=0)]


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    """A child with a limit on file size writes until it may not: the kernel cuts a line in two, we do not."""
    child = os.fork()
    if child == 0:
        code = 9
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
            records = Records(tmp_path, 0)
            try:
                for number in range(1000):
                    records.write(step(number))
            except CannotWrite as error:
                code = 0 if "What was written before is whole" in str(error) else 8
                try:
                    write_document(tmp_path / "big.json", Failed(rank=0, step=0, finite=True, why="x" * 5000))
                    code = 7
                except CannotWrite:
                    pass
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    lines = read_rank(tmp_path / "rank-0.jsonl")
    assert lines == [step(number) for number in range(len(lines))]
    assert len(lines) > 10
    assert [path.name for path in tmp_path.iterdir()] == ["rank-0.jsonl"]
