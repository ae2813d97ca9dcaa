"""`lockstep compare` and `lockstep doctor` as a user sees them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.commands import TINY, inside, lockstep


def test_side_by_side(tmp_path: Path) -> None:
    done = lockstep("compare", TINY, "--repeats", "2", "--json", "--out", "out", cwd=tmp_path)
    assert done.code == 0, done.text
    rows = {row["name"]: row for row in json.loads(done.out)["rows"]}
    assert {"single", "dp", "ddp", "torch-ddp"} <= set(rows)
    assert rows["single"]["digest"] == rows["dp"]["digest"] == rows["ddp"]["digest"]
    for row in rows.values():
        assert row["repeats"] == 2
        assert row["digest"], "a repeated run must give the same bits"
        assert row["seconds_spread"][0] <= row["seconds"] <= row["seconds_spread"][1]
        assert len(row["peak_memory"]) == (1 if row["name"].startswith(("single", "dp")) else row["workers"])
        assert row["memory_measure"] == "peak RSS"
        assert 0.0 <= row["metrics"]["accuracy"] <= 1.0
    assert rows["single"]["speed_up"] == 1.0
    assert rows["single"]["threads"] == rows["torch-ddp"]["threads"]
    folders = [path.name for path in (tmp_path / "out").iterdir()]
    assert "torch-ddp-2" in folders


def test_table(tmp_path: Path) -> None:
    done = lockstep("compare", TINY, "--repeats", "1", "--steps", "2", "--strategies", "torch-ddp", cwd=tmp_path)
    assert done.code == 0, done.text
    for word in ("strategy", "samples/s", "peak RSS", "accuracy", "digest", "torch-ddp"):
        assert word in done.out


def test_a_row_that_cannot_run_says_why(tmp_path: Path) -> None:
    done = lockstep("compare", TINY, "--repeats", "1", "--steps", "2", "--workers", "1", "--json", cwd=tmp_path)
    assert done.code == 0, done.text
    rows = {row["name"]: row for row in json.loads(done.out)["rows"]}
    assert "needs at least 2 workers" in rows["torch-ddp"]["why_not"]
    assert rows["single"]["repeats"] == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([TINY, "--strategies", "single,ddd"], "no strategy called 'ddd'"),
        ([TINY, "--strategies", ","], "--strategies is empty"),
        ([TINY, "--strategies", "single,single"], "each at most once"),
        (["none.py"], "none.py does not exist"),
        ([TINY, "--workers", "0"], "workers=0"),
    ],
)
def test_refused(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    done = inside(["compare", *arguments], tmp_path, monkeypatch, capfd)
    assert done.code == 2, done.text
    assert words in done.err


def test_doctor(tmp_path: Path) -> None:
    done = lockstep("doctor", "--json", cwd=tmp_path)
    found = json.loads(done.out)
    assert found["started_by"] == "inline"
    assert found["launchers"]["spawn"] == "yes"
    env = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "host-a", "MASTER_PORT": "29511", "OMP_NUM_THREADS": "1"}
    done = lockstep("doctor", cwd=tmp_path, env=env)
    assert done.code == 0, done.text
    for line in ("started by: manual", "MASTER_ADDR: host-a", "rendezvous: host-a:29511", "OMP_NUM_THREADS=1"):
        assert line in done.out
