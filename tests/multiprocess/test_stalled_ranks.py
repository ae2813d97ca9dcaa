"""A rank that is stuck or stopped is named with its stack, and ended if the user set a limit."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from lockstep.train.schema.rank_jsonl import header_of, read_rank
from tests.commands import LOCKSTEP, TINY, Marked, finish
from tests.multiprocess.test_ends import wait_for_steps


@pytest.mark.parametrize(("fault", "launcher"), [("locks", "spawn"), ("stop", "torchrun")])
def test_it_is_named_and_ended(fault: str, launcher: str, tmp_path: Path) -> None:
    marked = Marked()
    recipe = f"{TINY}:{'slow' if fault == 'stop' else fault}"
    command = [LOCKSTEP, "run", recipe, "--workers", "2", "--launcher", launcher, "--stall-limit", "4", "--out", "out"]
    process = marked.start([*command, "--steps", "1000"], tmp_path)
    if fault == "stop":
        wait_for_steps(tmp_path / "out")
        header = header_of(read_rank(tmp_path / "out" / "rank-1.jsonl"))
        assert header is not None
        os.kill(header.pid, signal.SIGSTOP)
    done = finish(process)
    assert done.code == 1, done.text
    assert "lockstep: rank 1 on " in done.err
    assert "It was ended by --stall-limit 4" in done.err, done.text
    if fault == "stop":
        assert "It is stopped (kill -CONT " in done.err, done.text
    else:
        assert "in strike" in done.err, done.text
        assert "in strike" in (tmp_path / "out" / "rank-1.stack.txt").read_text()
    assert marked.survivors() == []
