"""The run folder: whole lines and whole files, or a clear error."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import pytest

from lockstep.errors import BadInput
from lockstep.train.records import CannotWrite, Records, create_folder, read_json, read_records, write_json


def test_lines_and_files(tmp_path: Path) -> None:
    records = Records(tmp_path, 3)
    records.write({"rank": 3})
    records.write({"step": 0, "loss": 1.5})
    records.close()
    records.close()
    assert read_records(tmp_path / "rank-3.jsonl") == [{"rank": 3}, {"step": 0, "loss": 1.5}]
    write_json(tmp_path / "result.json", {"outcome": "done"})
    assert read_json(tmp_path / "result.json") == {"schema": 1, "outcome": "done"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank-3.jsonl", "result.json"]


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
    ("text", "words"),
    [("{", "cannot be read"), ('{"schema": 99}', "schema 99, and this version reads 1"), ("[]", "schema None")],
)
def test_damaged_files_are_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(BadInput, match=words):
        read_json(tmp_path / "run.json")
    with pytest.raises(BadInput, match=r"is .* a run folder"):
        read_json(tmp_path / "none" / "run.json")


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "rank-0.jsonl").write_text('{"rank": 0}\n{"ste')
    with pytest.raises(BadInput, match="damaged at line 2"):
        read_records(tmp_path / "rank-0.jsonl")


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    """A child with a limit on file size writes until it may not: the kernel cuts a line in two, we do not."""
    child = os.fork()
    if child == 0:
        code = 9
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
            records = Records(tmp_path, 0)
            try:
                for step in range(1000):
                    records.write({"step": step, "loss": 1.0})
            except CannotWrite as error:
                code = 0 if "What was written before is whole" in str(error) else 8
                try:
                    write_json(tmp_path / "big.json", {"text": "x" * 5000})
                    code = 7
                except CannotWrite:
                    pass
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    lines = read_records(tmp_path / "rank-0.jsonl")
    assert [line["step"] for line in lines] == list(range(len(lines)))
    assert len(lines) > 10
    assert [path.name for path in tmp_path.iterdir()] == ["rank-0.jsonl"]
