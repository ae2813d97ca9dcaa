"""A run as `lockstep runs` sees it while it goes on, and after it was killed."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from lockstep.runs.cleaning import chosen
from lockstep.runs.listing import ListedRun, State, list_runs
from tests.commands import LOCKSTEP, TINY, Marked


def seen(folder: Path, steps: int) -> ListedRun:
    """Return the only run of a folder when it has done so many steps."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        every = list_runs(folder) if folder.is_dir() else []
        if every and every[0].steps >= steps:
            return every[0]
        time.sleep(0.1)
    raise AssertionError(f"no run with {steps} steps in {folder}")


def test_a_run_is_running_from_its_start_until_it_is_killed(tmp_path: Path) -> None:
    marked, folder = Marked(), tmp_path / "runs"
    arguments = ["run", f"{TINY}:slow", "--workers", "2", "--epochs", "100", "--threads", "1", "--out", "runs/a"]
    process = marked.start([LOCKSTEP, *arguments], tmp_path)
    try:
        assert seen(folder, 0).state is State.running, "before its workers have begun"
        run = seen(folder, 2)
        assert (run.state, run.strategy, run.workers, run.planned) == (State.running, "ddp", 2, 800)
        assert run.loss is not None
        assert chosen([run], states=list(State), older_than=None, now=time.time()) == []
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert marked.survivors() == []
    assert list_runs(folder)[0].state is State.unfinished
