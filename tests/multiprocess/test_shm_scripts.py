"""Stock scripts under torchrun, with env://: the backend is one word in them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("scripts_shm.py")


def _run(client: str, backend: str) -> list[float]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, str(SCRIPT), client, backend],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("result"))
    return [float(word) for word in line.split()[1:]]


@pytest.mark.parametrize("client", ["plain", "lightning", "accelerate"])
def test_a_stock_script_trains_the_same(client: str) -> None:
    assert _run(client, "shm") == pytest.approx(_run(client, "gloo"), rel=1e-5)
