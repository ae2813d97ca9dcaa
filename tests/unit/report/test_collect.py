"""Reading run folders: what was changed, cut or lost is refused by file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.errors import BadInput
from lockstep.report.collect import read_run, spans
from tests.unit.report.folders import BEGAN, change, make_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run", strategy="ddp", workers=2)


def test_a_whole_folder(folder: Path) -> None:
    run = read_run(folder)
    assert run.done
    assert run.losses == pytest.approx([3.005 - 0.2 * step for step in range(6)])
    assert run.hosts == ("host-a", "host-a")
    assert len(spans(run)) == 2 * 2 * 6
    first = spans(run)[0]
    assert (first.rank, first.step, first.name, first.seconds) == (0, 2, "data", 0.001)
    assert first.start == pytest.approx(BEGAN + 2 * 0.04)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("digest", "zz", "digest is 'zz', and 64 hexadecimal digits was expected"),
        ("digest", "0" * 64, "rank-0.jsonl ends with digest ca978112ca1b, and result.json says 000000000000"),
        ("seconds", -1.0, "seconds is -1.0, and a number from 0 up"),
        ("seconds", float("nan"), "seconds is nan"),
        ("step_seconds", True, "step_seconds is True"),
        ("samples_per_second", "fast", "samples_per_second is 'fast'"),
        ("steps", 7, "rank-0.jsonl has 6 of 7 steps: lines were lost"),
        ("peak_memory", [], "peak_memory is []"),
        ("peak_memory", [1, -2], "1 is -2"),
        ("peak_memory", [1, 2, 3], "rank-2.jsonl does not exist, and .*result.json tells of 3 ranks"),
        ("metrics", None, "metrics is None, and an object"),
        ("metrics", {"accuracy": "good"}, "accuracy is 'good'"),
        ("ranks", [{"rank": 0, "parts": {"data": -1}}], "rank 0: data is -1"),
        ("ranks", "none", "ranks is 'none'"),
        ("outcome", 3, "outcome is 3, and text"),
        ("schema", 99, "schema 99, and this version reads"),
    ],
)
def test_a_changed_result_is_refused(folder: Path, field: str, value: object, words: str) -> None:
    change(folder / "result.json", **{field: value})
    with pytest.raises(BadInput, match=words.replace("[", r"\[")):
        read_run(folder)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("spec", None, "spec is None"),
        ("spec", {"strategy": "ddp", "launcher": "spawn", "workers": 0}, "workers is 0, and a whole number from 1 up"),
        ("recipe", {"name": "x", "seed": 0}, "global_batch is missing"),
        ("plan", {"lanes": 1.5, "steps": 6}, "lanes is 1.5"),
    ],
)
def test_a_changed_order_is_refused(folder: Path, field: str, value: object, words: str) -> None:
    change(folder / "run.json", **{field: value})
    with pytest.raises(BadInput, match=rf"run.json: {words}"):
        read_run(folder)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"loss": 2.61', '"loss": "low"', "line 4: loss is 'low'"),
        ('"weight": 16.0', '"weight": -1', "line 2: weight is -1"),
        ('["forward", 0.001, 0.01]', '["forward", 0.001]', r"line 4: a span is \['forward', 0.001\]"),
        ('["forward", 0.001, 0.01]', '["forward", -3, 0.01]', "line 4: span's start is -3"),
        ('{"rank": 1', '[1]\n{"rank": 1', r"damaged at line 1: \[1\] is no JSON object"),
        ('{"end"', '{"en\udc80', "damaged at line 8"),
    ],
)
def test_a_changed_line_is_named(folder: Path, old: str, new: str, words: str) -> None:
    path = folder / "rank-1.jsonl"
    text = path.read_text()
    assert old in text
    path.write_bytes(text.replace(old, new, 1).encode(errors="surrogateescape"))
    with pytest.raises(BadInput, match=rf"rank-1.jsonl.*{words}"):
        read_run(folder)


def test_a_cut_file_is_refused(folder: Path) -> None:
    path = folder / "rank-1.jsonl"
    path.write_text("\n".join(path.read_text().splitlines()[:4]) + "\n")
    with pytest.raises(BadInput, match=r"rank-1.jsonl has 3 of 6 steps and no end line"):
        read_run(folder)
    path.unlink()
    with pytest.raises(BadInput, match=r"rank-1.jsonl does not exist"):
        read_run(folder)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"step": 0, "parameters": {"w": ["ab", 0.1, 0.2]}, "buffers": {}}', ""),
        ('{"step": 0, "parameters": {"w": ["ab", null, null]}, "buffers": {}}', ""),
        ('{"step": 0, "parameters": {"w": "ab"}, "buffers": {}}', "w is 'ab', and \\[hash, mean, norm\\]"),
        ('{"step": 0, "parameters": {"w": ["ab", "x", 1]}, "buffers": {}}', "mean is 'x'"),
        ('{"parameters": {}, "buffers": {}}', "step is missing"),
        ('{"step": 0, "parameters": []}', "parameters is \\[\\], and an object"),
    ],
)
def test_fingerprints(folder: Path, line: str, words: str) -> None:
    (folder / "prints.jsonl").write_text(line + "\n")
    if words:
        with pytest.raises(BadInput, match=words):
            read_run(folder)
    else:
        assert read_run(folder).prints[0]["parameters"]["w"][0] == "ab"
