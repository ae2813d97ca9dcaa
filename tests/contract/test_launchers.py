"""One suite over every launcher: ranks, results, exit codes, failure reports, and the same losses."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from lockstep.launch.start import start_run
from lockstep.report.collect import read_finished
from lockstep.train.schema.rank_jsonl import header_of, rank_path, read_rank
from lockstep.train.spec import RunSpec
from tests.commands import TINY, Done
from tests.contract.ways import HERE, LAUNCHED, TYPED, crossed, make, params

WORKERS = 2
UNEVEN = 3
"""Workers that share four lanes, and two nodes, unevenly; what others start has two workers."""
WAYS = [("inline", 1), ("spawn", 2), ("spawn, here", 4)]
WAYS += [*((name, UNEVEN) for name in LAUNCHED), *((name, WORKERS) for name in TYPED)]
ALWAYS = ["inline", "spawn", "spawn, here", *LAUNCHED, "by hand, file", "by variables"]
"""The others are typed in the tests of the launchers' pages (tests/system/test_launcher_pages.py)."""
FAULTS = {
    "raises": "ValueError: the fourth batch is cursed",
    "killed": "signal 9",
    "exits": "called exit(0)",
    "exits_hard": "ended without a word|exited with code 0",
}


@pytest.fixture(scope="session")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one worker in this very process gives; every way must give the same."""
    spec = RunSpec(recipe=TINY, lanes=4, threads=1, progress=False)
    return outcome(start_run(spec, tmp_path_factory.mktemp("expected") / "out"))


def outcome(folder: Path) -> dict[str, Any]:
    run = read_finished(folder)
    return {"losses": run.losses, "digest": run.result.digest, "metrics": run.result.metrics}


@pytest.mark.parametrize(("name", "workers"), params(WAYS, always=ALWAYS))
def test_trains(
    name: str, workers: int, request: pytest.FixtureRequest, tmp_path: Path, expected: dict[str, Any]
) -> None:
    """Also with another number of workers: the bits are those of one process. Threads are by default 1 everywhere."""
    way, marked = make(name, request, tmp_path)
    out = tmp_path / "out"
    done = way.run([TINY, "--lanes", "4", "--out", str(out)], workers, tmp_path, marked)
    assert done.code == 0, done.text
    headers = [header for rank in range(workers) if (header := header_of(read_rank(rank_path(out, rank))))]
    assert [header.rank for header in headers] == list(range(workers))
    assert {header.size for header in headers} == {workers}
    assert {header.device for header in headers} == {"cpu"}
    assert len({header.pid for header in headers}) == workers
    trained = outcome(out)
    assert len(trained["losses"]) == 16
    assert trained == expected
    assert "loss by step" in done.out
    assert marked.survivors() == []


@pytest.mark.parametrize(("name", "fault"), crossed(HERE, FAULTS))
def test_a_failing_rank_ends_the_run(name: str, fault: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    way, marked = make(name, request, tmp_path)
    out = tmp_path / "out"
    done = way.run([f"{TINY}:{fault}", "--threads", "1", "--out", str(out)], WORKERS, tmp_path, marked)
    assert done.code == 1, done.text
    check_report(done, fault)
    assert len(done.err.splitlines()) < 30, done.text
    assert json.loads((out / "result.json").read_text())["outcome"] == "failed"
    assert marked.survivors() == []


@pytest.mark.parametrize("name", params(TYPED, always=["by hand, tcp", "torchrun, typed", "srun, typed"]))
def test_a_failing_rank_ends_what_others_started(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    way, marked = make(name, request, tmp_path)
    done = way.run([f"{TINY}:raises", "--threads", "1", "--out", str(tmp_path / "out")], WORKERS, tmp_path, marked)
    assert done.code != 0, done.text
    check_report(done, "raises")
    assert marked.survivors() == []


def check_report(done: Done, fault: str) -> None:
    """The report names rank, host, step and cause, once, on one screen."""
    head = f"rank 1 on {os.uname().nodename} failed at step 3:"
    assert done.err.count(head) == 1, done.text
    report = done.err[done.err.index(head) :]
    assert any(words in report for words in FAULTS[fault].split("|")), done.text


@pytest.mark.parametrize("name", params(HERE, always=["spawn, here", "srun"]))
def test_bad_input_is_refused_before_a_worker_starts(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    way, marked = make(name, request, tmp_path)
    out = tmp_path / "out"
    done = way.run([f"{TINY}:breaks", "--out", str(out)], WORKERS, tmp_path, marked)
    assert done.code == 2, done.text
    assert "no recipe today" in done.err
    assert not out.exists()
    assert marked.survivors() == []
