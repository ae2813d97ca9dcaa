"""Divided weights from the command line: one digest, what the run says of them, and a worker's death."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

from lockstep.launch.process_exit import exit_now
from tests.commands import CommandLine
from tests.contract.lane_cases import go_on
from tests.contract.test_sharded import sharded
from tests.ranks import Ranks


def test_a_run_says_what_is_divided_and_has_one_digest(tmp_path: Path, cli: CommandLine) -> None:
    results = {}
    for name, options in {
        "one": ["--strategy", "single", "--workers", "1"],
        "messages": ["--strategy", "sharded", "--workers", "2", "--backend", "gloo"],
        "arena": ["--strategy", "sharded", "--workers", "2"],
    }.items():
        asked = ["run", "bytes", *options, "--lanes", "4", "--threads", "1", "--steps", "5", "--json", "--out", name]
        done = cli(*asked)
        assert done.code == 0, done.err
        results[name] = json.loads(done.out)["result"]
    assert len({result["digest"] for result in results.values()}) == 1
    assert len({json.dumps(result["metrics"]) for result in results.values()}) == 1
    assert results["one"]["shards"] == ""
    assert "are divided over 2 workers" in results["messages"]["shards"]
    assert "nothing is left to divide" in results["arena"]["shards"]
    final = {(tmp_path / name / "final.safetensors").stat().st_size for name in results}
    assert max(final) - min(final) < 200, "the plain model comes back whole"


FAILED = 7


def train_until_it_fails(rank: int, size: int) -> None:
    """Train, and end the process at an error, as a rank of a launcher does: one that stays would be waited for."""
    trainer = sharded("woven", rank, size)
    try:
        for _ in range(1000):
            go_on(trainer, name="woven")
    except Exception:
        exit_now(FAILED)


def test_a_worker_that_dies_ends_the_others() -> None:
    with Ranks(3, "gloo") as ranks:
        ranks.start(train_until_it_fails)
        time.sleep(3)
        os.kill(ranks.pid(1), signal.SIGKILL)
        outcomes = ranks.outcomes()
        assert all(outcome.died for outcome in outcomes.values()), outcomes
        for other in (0, 2):
            ranks.processes[other].join(10)
            assert ranks.processes[other].exitcode == FAILED, "nobody waits for a worker that is gone"
