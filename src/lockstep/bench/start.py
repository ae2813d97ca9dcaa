"""`lockstep bench start`: how long a person waits before anything is trained."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from lockstep.errors import RunFailed
from lockstep.train.schema.rank_jsonl import rank_path, read_rank, steps_of

STOCK = Path(__file__).with_name("ranks") / "stock_first_step.py"


@dataclass(frozen=True, kw_only=True)
class Figure:
    """Ours against theirs, both from the same interleaved run."""

    what: str
    """What was timed."""
    ours: float
    """Seconds, the median."""
    ours_spread: tuple[float, float]
    """The fastest and the slowest."""
    theirs: float
    """Seconds, the median."""
    theirs_spread: tuple[float, float]
    """The fastest and the slowest."""
    goal: float
    """What the ratio should be at most."""

    @property
    def ratio(self) -> float:
        """Ours over theirs."""
        return self.ours / self.theirs


def run(repeats: int) -> list[Figure]:
    """Time both figures, each side in turn."""
    return [
        _figure("`lockstep --help` / `python -c 'import torch'`", _help, _import_torch, repeats, goal=0.25),
        _figure("command to first step, 2 workers: spawn / torchrun", _spawn, _torchrun, repeats, goal=1.0),
    ]


def _figure(what: str, ours: object, theirs: object, repeats: int, *, goal: float) -> Figure:
    times: tuple[list[float], list[float]] = ([], [])
    for repeat in range(repeats + 1):
        for side, measure in enumerate((ours, theirs)):
            seconds = measure()  # type: ignore[operator]
            if repeat:  # the first round only warms the disk cache
                times[side].append(seconds)
    mine, other = times
    return Figure(
        what=what,
        ours=statistics.median(mine),
        ours_spread=(min(mine), max(mine)),
        theirs=statistics.median(other),
        theirs_spread=(min(other), max(other)),
        goal=goal,
    )


def _timed(command: list[str]) -> float:
    began = time.perf_counter()
    _run(command)
    return time.perf_counter() - began


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunFailed(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def _help() -> float:
    return _timed([sys.executable, "-m", "lockstep", "--help"])


def _import_torch() -> float:
    return _timed([sys.executable, "-c", "import torch"])


def _spawn() -> float:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        began = time.time()
        command = [sys.executable, "-m", "lockstep", "run", "mlp", "--strategy", "torch-ddp", "--workers", "2"]
        _run([*command, "--steps", "1", "--threads", "1", "--launcher", "spawn", "--out", str(out), "--json"])
        first, *_ = steps_of(read_rank(rank_path(out, 0)))
        return first.began + first.total - began


def _torchrun() -> float:
    began = time.time()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    out = _run([*command, str(STOCK)])
    return float(json.loads(out.splitlines()[-1])["time"]) - began
