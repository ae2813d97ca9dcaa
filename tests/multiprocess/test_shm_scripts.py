"""Stock scripts under torchrun, with env://: the backend is one word in them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import LOCKSTEP
from tests.services import require

SCRIPT = Path(__file__).with_name("scripts_shm.py")


def _run(command: list[str]) -> dict[str, list[float]]:
    """Run a script that trains over one backend after the other; return the numbers of each."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith(("gloo ", "shm "))]
    return {words[0]: [float(word) for word in words[1:]] for words in lines}


@pytest.mark.parametrize(
    "client", ["plain", *(pytest.param(name, marks=pytest.mark.soak) for name in ("lightning", "accelerate"))]
)
def test_a_stock_script_trains_the_same(client: str) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    found = _run([*torchrun, str(SCRIPT), client, "gloo", "shm"])
    assert found["shm"] == pytest.approx(found["gloo"], rel=1e-5)


def test_a_stock_script_runs_under_mpirun() -> None:
    """Under `spawn` the example of a stock loop does."""
    require("mpirun")
    launch = [LOCKSTEP, "launch", "--workers", "2", "--launcher", "mpirun"]
    found = _run([*launch, str(SCRIPT), "--", "plain", "shm"])
    assert list(found) == ["shm"]
