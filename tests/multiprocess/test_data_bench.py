"""`lockstep bench data`, small: every side and every goal is there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.bench.data import Found, Goal, Row
from lockstep.bench.data_table import tables
from lockstep.bench.ranks.data.sides import LIST, OURS, SIDES
from lockstep.bench.ranks.data.starting import SPAWN
from lockstep.bench.ranks.data.training import by_hand
from lockstep.report.render import console
from tests.commands import inside, lockstep

SMALL = ["--items", "300,400", "--elements", "64", "--ranks", "2", "--repeats", "1", "--samples", "100000"]


def test_all_sides_from_one_run(tmp_path: Path) -> None:
    done = lockstep("bench", "data", *SMALL, "--no-training", "--json", cwd=tmp_path)
    assert done.code == 0, done.text
    found = json.loads(done.out)
    assert [(row["items"], row["side"]) for row in found["rows"]] == [(n, side) for n in (300, 400) for side in SIDES]
    for row in found["rows"]:
        assert not row["why_not"]
        assert len(row["start"]) == len(row["handed"]) == len(row["forked"]) == 1
        assert 0 < row["handed"][0] < row["start"][0], "the data's part is a part"
        assert set(row["epoch"]) == {"0", "2"}
    files = {(row["items"], row["side"]): row["descriptors"] for row in found["rows"]}
    assert files[300, OURS] == files[400, OURS] < 50
    assert files[300, "list of tensors"] > 300
    assert {goal["most"] for goal in found["goals"]} == {3.0, 1.05, 0.5, 1.1, 1.0, 0.01}


def test_a_list_that_needs_more_files_than_allowed_is_no_failure_of_the_program() -> None:
    plan = {"side": LIST, "items": 300, "elements": 8, "ranks": 1, "how": SPAWN}
    start = [sys.executable, "-m", "lockstep.bench.ranks.data.starting", json.dumps(plan)]
    limited = ["sh", "-c", 'ulimit -n 200; exec "$@"', "sh", *start]
    done = subprocess.run(limited, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"why_not": "Too many open files (24) (limit 200)"}


def test_a_small_training_by_hand() -> None:
    found = by_hand(LIST, 200, 8)
    assert isinstance(found, float), found


def test_a_side_that_fails_is_a_row_that_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    good = Row(10, OURS, start=[1.0], forked=[0.5], handed=[0.1], epoch={0: [0.1], 2: [0.2]}, descriptors=12)
    good.by_hand, good.lightning = 3.25, "not installed"
    rows = [Row(10, "list of tensors", why_not="Too many open files (24)"), good]
    for table in tables(Found(rows, [Goal("ours / theirs", 0.123456, 0.5, (0.1, 0.2))])):
        console().print(table)
    shown = capsys.readouterr().out
    for words in ("Too many", "0.1235", "0.1 to 0.2", "at most 0.5", "12", "3.2 s", "not"):
        assert words in shown


@pytest.mark.parametrize(("items", "words"), [("many", "numbers separated by commas"), ("10", "at least 400")])
def test_refused(
    items: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    done = inside(["bench", "data", "--items", items], tmp_path, monkeypatch, capfd)
    assert done.code == 2
    assert words in done.err
