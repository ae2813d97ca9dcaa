"""Reading run folders: what was changed, cut or lost is refused by file and line."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from lockstep.errors import BadInput
from lockstep.report.collect import FinishedRun, read_finished, read_run, spans
from lockstep.train.records import write_document
from lockstep.train.schema.result_json import Failed
from lockstep.train.schema.scalars import SCHEMA
from tests.unit.report.folders import change, make_run
from tests.unit.report.values import BEGAN, setup


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run", strategy="ddp", workers=2)


def test_a_whole_folder(folder: Path) -> None:
    run = read_finished(folder)
    assert run.losses == pytest.approx([3.005 - 0.2 * step for step in range(6)])
    assert run.hosts == ("host-a", "host-a")
    assert len(spans(run)) == 2 * 2 * 6
    first = spans(run)[0]
    assert (first.rank, first.step, first.name, first.seconds) == (0, 2, "data", 0.001)
    assert first.start == pytest.approx(BEGAN + 2 * 0.04)


RANK = {"rank": 0, "host": "h", "step_seconds": 1.0, "step_quartiles": [1.0, 1.0, 1.0], "parts": {}, "hidden": 0.0}
RANK |= {"replica": 0, "stage": 0, "sent": 0, "peak_memory": 1, "loss": 1.0, "weight": 1.0}


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("digest", "zz", 'digest is "zz", expected 64 hexadecimal digits'),
        ("digest", "0" * 64, "rank-0.jsonl ends with digest ca978112ca1b, and result.json says 000000000000"),
        ("seconds", -1.0, "seconds is -1.0, expected a number above 0.0"),
        ("seconds", float("nan"), "it is not JSON (invalid character"),
        ("seconds", 10**400, "..., which is out of range"),
        ("step_seconds", True, "step_seconds is true, expected a number"),
        ("step_seconds", 0.0, "step_seconds is 0.0, expected a number above 0.0"),
        ("samples_per_second", "fast", 'samples_per_second is "fast", expected a number'),
        ("steps", 7, "result.json tells of 7 steps, and run.json of 6"),
        ("steps", 6.0, "steps is 6.0, expected a whole number"),
        ("steps", 10**30, "expected a whole number of at most 9007199254740992"),
        ("warmup_steps", 6, "has 6 warmup_steps of 6 steps"),
        ("peak_memory", [], "peak_memory is [], expected a list with 1 or more entries"),
        ("peak_memory", [1, -2], "peak_memory, entry 2 is -2, expected a whole number of at least 0"),
        ("peak_memory", [1, 2, 3], "has ranks 0, 1 and peak_memory of 3 ranks"),
        ("peak_reserved", [1, 2], "has other figures in peak_reserved than its ranks have"),
        ("metrics", None, "metrics is null, expected an object"),
        ("metrics", {"accuracy": "good"}, "metrics, one entry does not fit, expected a number or null"),
        (
            "ranks",
            [{**RANK, "parts": {"data": -1}}],
            "ranks, entry 1, parts, one entry does not fit, expected",
        ),
        ("ranks", [{**RANK, "parts": {"nap": 1}}], "a name in ranks, entry 1, parts is unknown: 'nap'"),
        ("ranks", [{**RANK, "loss": "low"}], 'ranks, entry 1, loss is "low", expected a number'),
        ("ranks", [{"rank": 0}], "ranks, entry 1, replica is missing"),
        ("ranks", [RANK] * 2, "has ranks 0, 0 and"),
        ("ranks", [{**RANK, "rank": rank} for rank in range(3)], "rank-2.jsonl does not exist"),
        ("ranks", "none", 'ranks is "none", expected a list'),
        ("outcome", 3, "outcome is 3, expected text"),
        ("outcome", "perhaps", 'outcome is "perhaps", which is unknown to this version'),
        ("colour", "red", "colour is unknown to this version"),
        ("schema", 99, f"schema version 99, and this is Lockstep 0.1.0, which reads schema version {SCHEMA}"),
        ("schema", None, "result.json has no schema version"),
        ("memory_measure", "\ud800", "it is not JSON (unexpected end of hex escape"),
    ],
)
def test_a_changed_result_is_refused(folder: Path, field: str, value: object, words: str) -> None:
    change(folder / "result.json", **{field: value})
    with pytest.raises(BadInput, match=re.escape(words)) as told:
        read_run(folder)
    assert len(str(told.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("spec", None, "spec is null, expected an object"),
        ("spec", {"strategy": "ddp"}, "spec, recipe is missing"),
        ("spec", {"recipe": "tiny.py", "workers": "2"}, 'spec, workers is "2", expected a whole number'),
        ("spec", {"recipe": "tiny.py"}, "spec, backend is missing"),
        ("recipe", {"name": "x", "seed": 0}, "recipe, global_batch is missing"),
        ("plan", {"lanes": 1.5, "steps": 6}, "plan, lanes is 1.5, expected a whole number"),
        ("versions", {"torch": 2}, "versions, one entry does not fit, expected text or null"),
        ("host", ["\n"], 'host is ["\\n"], expected text'),
    ],
)
def test_a_changed_setup_is_refused(folder: Path, field: str, value: object, words: str) -> None:
    change(folder / "run.json", **{field: value})
    with pytest.raises(BadInput, match=re.escape(f"run.json: {words}")):
        read_run(folder)


def test_settings_of_another_version_are_refused(folder: Path) -> None:
    spec = json.loads((folder / "run.json").read_text())["spec"]
    change(folder / "run.json", spec={**spec, "turbo": True})
    with pytest.raises(BadInput, match=r"run\.json: spec, turbo is unknown to this version"):
        read_run(folder)
    path = folder / "run.json"
    path.write_bytes(path.read_bytes().replace(b'"turbo"', b'"turb\xff"'))
    with pytest.raises(BadInput, match=r"run\.json: it is not UTF-8 text"):
        read_run(folder)
    path.write_bytes(path.read_bytes().replace(b'"turb\xff"', b'"turbo"'))
    change(folder / "run.json", spec={**spec, "workers": 0})
    with pytest.raises(BadInput, match=r"run\.json: spec, workers is 0, expected a whole number from 1 to 1048576"):
        read_run(folder)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"loss":2.61', '"loss":"low"', 'line 6: loss is "low", expected a number'),
        ('"weight":16.0', '"weight":-1', "line 2: weight is -1, expected a number of at least 0.0"),
        (
            '["forward",0.001,0.01]',
            '["forward",0.001]',
            'line 6: spans, entry 2 is ["forward", 0.001], expected a list',
        ),
        (
            '["forward",0.001,0.01]',
            '["forward",0.001,-3]',
            "line 6: spans, entry 2, entry 3 is -3, expected a number",
        ),
        ('{"kind":"header"', '[1]\n{"kind":"header"', "line 1: the content is [1], expected an object"),
        ('"kind":"step","step":2', '"kind":"stop","step":2', 'line 6: kind is "stop", which is unknown'),
        ('"kind":"end"', '"kind":"en\udc80"', "line 14: it is not UTF-8 text"),
        ('"step":3,', '"step":3,"deep":' + "[" * 100_000 + ",", "line 8: deep is unknown to this version"),
        ('"step":3,', '"step":' + "[" * 100_000 + ",", "line 8: step does not fit, expected a whole number"),
        ('"step":3,', '"step":5,', "has 5 of 6 steps: lines were lost"),
        ('"kind":"header","rank":1', '"kind":"header","rank":0', "does not begin with the header of rank 1"),
    ],
)
def test_a_changed_line_is_named(folder: Path, old: str, new: str, words: str) -> None:
    path = folder / "rank-1.jsonl"
    text = path.read_text()
    assert old in text
    path.write_bytes(text.replace(old, new, 1).encode(errors="surrogateescape"))
    with pytest.raises(BadInput, match=rf"rank-1.jsonl.*{re.escape(words)}"):
        read_run(folder)


def test_a_cut_file_is_refused(folder: Path) -> None:
    path = folder / "rank-1.jsonl"
    path.write_text("\n".join(path.read_text().splitlines()[:6]) + "\n")
    with pytest.raises(BadInput, match=r"rank-1.jsonl has 3 of 6 steps and no end line"):
        read_run(folder)
    path.unlink()
    with pytest.raises(BadInput, match=r"rank-1.jsonl does not exist"):
        read_run(folder)


def test_a_run_that_failed_is_read_as_far_as_it_came(folder: Path) -> None:
    write_document(folder / "result.json", Failed(rank=1, step=2, finite=True, why="rank 1 failed"))
    path = folder / "rank-1.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:5]) + lines[5][:40])
    run = read_run(folder)
    assert [len(steps) for steps in run.steps] == [6, 2], "half a line is left out"
    assert not isinstance(run, FinishedRun)
    with pytest.raises(BadInput, match="did not end well: rank 1 failed"):
        read_finished(folder)


def test_a_rank_that_died_while_it_started_has_no_steps(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    write_document(folder / "run.json", setup("ddp", 2))
    write_document(folder / "result.json", Failed(rank=1, step=-1, finite=True, why="killed"))
    (folder / "rank-0.jsonl").touch()
    (folder / "rank-1.jsonl").touch()
    run = read_run(folder)
    assert (run.steps, run.hosts, run.losses) == (((), ()), ("", ""), ())


@pytest.mark.parametrize("name", ["run.json", "result.json", "rank-0.jsonl"])
def test_only_regular_files_are_read(folder: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)  # opening it would wait for ever
    with pytest.raises(BadInput, match=f"{name} is not a regular file"):
        read_run(folder)


def test_a_file_that_is_too_large_is_not_read(folder: Path) -> None:
    with open(folder / "result.json", "r+b") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(BadInput, match=r"result\.json has 67,108,865 bytes, and no more than 67,108,864 are read"):
        read_run(folder)


HASH = "0123456789abcdef"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f'{{"step": 0, "parameters": {{"w": ["{HASH}", 0.1, 0.2]}}, "buffers": {{}}}}', ""),
        (f'{{"step": 0, "parameters": {{"w": ["{HASH}", null, null]}}, "buffers": {{}}}}', ""),
        (
            f'{{"step": 0, "parameters": {{"w": "{HASH}"}}, "buffers": {{}}}}',
            "parameters, one entry does not fit",
        ),
        ('{"step": 0, "parameters": {"w": ["ab", 1, 1]}, "buffers": {}}', "expected 16 hexadecimal digits"),
        (f'{{"step": 0, "parameters": {{"w": ["{HASH}", "x", 1]}}, "buffers": {{}}}}', "one entry, entry 2 does not"),
        ('{"parameters": {}, "buffers": {}}', "step is missing"),
        ('{"step": 0, "parameters": []}', "parameters is [], expected an object"),
    ],
)
def test_fingerprints(folder: Path, line: str, words: str) -> None:
    (folder / "fingerprints.jsonl").write_text(line + "\n")
    if words:
        with pytest.raises(BadInput, match=re.escape(words)):
            read_run(folder)
    else:
        assert read_run(folder).fingerprints[0].parameters["w"].hash == HASH
