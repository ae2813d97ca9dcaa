"""A good comparison folder, changed at random: every report of it succeeds, or is refused on one line."""

from __future__ import annotations

import io
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lockstep.errors import BadInput
from lockstep.report.files import json_text, write_all
from lockstep.report.gather import gather
from lockstep.report.tensorboard import scalars
from lockstep.report.terminal import show
from lockstep.train.records import Lines, write_document
from lockstep.train.schema.plan_json import ComparisonPlan, Way
from tests.unit.report.causes import fingerprints
from tests.unit.report.folders import make_run
from tests.unit.report.values import setup

FILES = ("run.json", "result.json", "rank-0.jsonl", "fingerprints.jsonl")
VALUES: list[Any] = [None, True, False, 0, 1, -1, 2, 10**6, 2**53, 2**63, 10**40, 0.0, -0.0, 0.5, -1e-7, 1e-300, 5e-324]
VALUES += [1e300, -1.7e308, 1.7e308, "", "x", "0" * 64, "\n\x00\u202e", "ddp", "done", "failed", [], [[]], {}, {"": {}}]
VALUES += [[None], ["forward", 0.0, 0.0], {"data": 1.0}, {"accuracy": 1e308}]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ways, one of two ranks; with a plan, fingerprints, and the files of an earlier report."""
    folder = tmp_path_factory.mktemp("good") / "all"
    ways = []
    for name, workers in (("single", 1), ("torch-ddp", 2)):
        run = make_run(folder / f"{name}-1", strategy=name, workers=workers, state=name)
        lines = Lines(run / "fingerprints.jsonl")
        for step in (0, 1, 5):
            lines.write(fingerprints(step, buffers={"norm.running_mean": 1.0}, weight=1.0 + step * workers))
        lines.close()
        ways.append(Way(name=name, spec=setup(name, workers).spec))
    plan = ComparisonPlan(
        title="t", command="c", ways=tuple(ways), repeats=1, time_limit=None, source="", versions={"torch": "2.13.0"}
    )
    write_document(folder / "plan.json", plan)
    write_all(gather([folder]), folder)
    return folder


def every_report(folder: Path, out: Path) -> None:
    """Make everything that `lockstep report` makes, and what `--tensorboard` writes."""
    comparison = gather([folder])
    write_all(comparison, out)
    show(comparison, Console(file=io.StringIO(), width=100), per_rank=True)
    json_text(comparison.as_json())
    for runs in comparison.runs.values():
        for run in runs:
            list(scalars(run))


def refusal(folder: Path, out: Path, changed: Path) -> str:
    """Make every report; return how it was refused, or nothing."""
    try:
        every_report(folder, out)
    except BadInput as error:
        return str(error)
    except Exception as error:
        raise AssertionError(f"{changed} with {changed.read_bytes()[:3000]!r}") from error
    return ""


def mutated(data: bytes, chance: random.Random, *, lines: bool) -> bytes:
    """Change bytes, or one value of the JSON."""
    if chance.random() < 0.3:
        return _bytes(data, chance)
    texts = data.splitlines() if lines else [data]
    place = chance.randrange(len(texts))
    tree = json.loads(texts[place])
    _change(tree, chance)
    texts[place] = json.dumps(tree, allow_nan=True).encode()
    return b"\n".join(texts) + b"\n" if lines else texts[0]


def _bytes(data: bytes, chance: random.Random) -> bytes:
    at, length = chance.randrange(len(data)), chance.choice((1, 1, 1, 8, 200))
    new = chance.choice((b"", chance.randbytes(1), b"9" * 5000, b"[" * 50_000, b"NaN", b"\\ud800", b"\n", b"-"))
    return data[:at] if chance.random() < 0.1 else data[:at] + new + data[at + length :]


def _change(tree: Any, chance: random.Random) -> None:
    """Change, add or remove one value at any depth."""
    while True:
        key = chance.choice(list(tree) if isinstance(tree, dict) else list(range(len(tree))))
        inner = tree[key]
        if isinstance(inner, dict | list) and inner and chance.random() < 0.7:
            tree = inner
            continue
        what = chance.random()
        if what < 0.15:
            del tree[key]
        elif what < 0.3 and isinstance(inner, int | float):
            tree[key] = inner * chance.choice((0, -1, 2, 1e9, 1e-9))
        elif what < 0.4 and isinstance(tree, list):
            tree.insert(key, inner)
        elif what < 0.45 and isinstance(tree, dict):
            tree["new"] = inner
        else:
            tree[key] = chance.choice(VALUES)
        return


@pytest.mark.parametrize("seed", range(6))
def test_no_change_ends_in_a_traceback(good: Path, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    out, refused = tmp_path / "out", 0
    out.mkdir()
    shutil.copytree(good, tmp_path / "all")
    for _ in range(50):
        run = chance.choice(("single-1", "torch-ddp-1", "."))
        name = chance.choice(("plan.json", "comparison.json") if run == "." else FILES)
        path = tmp_path / "all" / run / name
        whole = path.read_bytes()
        path.write_bytes(mutated(whole, chance, lines=name.endswith(".jsonl")))
        told = refusal(tmp_path / "all", out, path)
        path.write_bytes(whole)
        refused += bool(told)
        assert len(told.splitlines()) <= 1
        assert not told or str(tmp_path) in told
    assert 10 < refused < 50, "some changes are harmless, and some are not"
