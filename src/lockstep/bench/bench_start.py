"""`lockstep bench start`: how long a person waits before anything is trained."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lockstep.bench.contract import (
    Benchmark,
    BenchOption,
    BenchSettings,
    Cell,
    Figure,
    Measurements,
    Table,
    TableColumn,
    Tell,
    Unit,
    at_most,
    figure,
    median,
    repeats,
    seconds,
)
from lockstep.bench.ranks.rank import THREADS
from lockstep.bench.ranks.tracebacks import first_traceback
from lockstep.errors import RunFailed
from lockstep.train.schema.rank_jsonl import rank_path, read_rank, steps_of

STOCK = Path(__file__).with_name("ranks") / "stock_first_step.py"
SPREAD = "fastest to slowest"
WORKERS = 2


@dataclass(frozen=True)
class TimedCommand:
    """One side: what a person types, and how its time is taken."""

    name: str
    seconds: Callable[[], float]


@dataclass(frozen=True)
class Pair:
    """Two ways to the same point."""

    what: str
    ours: TimedCommand
    theirs: TimedCommand
    goal: float


def run(settings: BenchSettings, tell: Tell) -> Measurements:
    """Time both pairs, each side in turn."""
    pairs = (
        Pair("command to help text, beside an import of torch", HELP, IMPORT_TORCH, 0.25),
        Pair(f"command to first step, {WORKERS} workers: spawn / torchrun", SPAWN, TORCHRUN, 1.0),
    )
    figures = tuple(_figure(pair, settings[REPEATS], settings[WARM_UP], tell) for pair in pairs)
    columns = (TableColumn(name="command"), TableColumn(name="time", unit=Unit.SECONDS, spread=SPREAD))
    rows: tuple[dict[str, Cell], ...] = tuple(
        {"command": side.name, "time": side.measured} for figure in figures for side in (figure.ours, figure.theirs)
    )
    table = Table(name="commands", title="from the command to its first result", columns=columns, rows=rows)
    return Measurements(tables=(table,), figures=figures)


def _figure(pair: Pair, repeats: int, warm_up: int, tell: Tell) -> Figure:
    samples: tuple[list[float], list[float]] = ([], [])
    for repeat in range(-warm_up, repeats):
        tell(f"{pair.what}: " + ("warm-up" if repeat < 0 else f"repeat {repeat + 1} of {repeats}"))
        for side, way in enumerate((pair.ours, pair.theirs)):
            took = way.seconds()
            if repeat >= 0:
                samples[side].append(took)
    ours, theirs = (seconds(way.name, median(own)) for way, own in zip((pair.ours, pair.theirs), samples, strict=True))
    return figure(pair.what, ours, theirs, at_most(pair.goal))


def _timed(command: list[str]) -> float:
    began = time.perf_counter()
    _run(command)
    return time.perf_counter() - began


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        shown = " ".join(Path(word).name if word.startswith("/") else word for word in command)
        raise RunFailed(f"{shown} ended with exit code {done.returncode}:\n{first_traceback(done.stderr)}")
    return done.stdout


def _help() -> float:
    return _timed([sys.executable, "-m", "lockstep", "--help"])


def _import_torch() -> float:
    return _timed([sys.executable, "-c", "import torch"])


def spawn_command(out: Path) -> list[str]:
    """Return our side's command, with everything said that a default could change: a lane and a thread per worker."""
    command = [sys.executable, "-m", "lockstep", "run", "mlp", "--strategy", "torch-ddp", "--launcher", "spawn"]
    sizes = {"--workers": WORKERS, "--lanes": WORKERS, "--threads": THREADS, "--steps": 1}
    return [*command, *(word for name, value in sizes.items() for word in (name, str(value))), "--out", str(out)]


def _spawn() -> float:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        began = time.time()
        _run([*spawn_command(out), "--json"])
        first, *_ = steps_of(read_rank(rank_path(out, 0)))
        return first.began + first.total - began


def _torchrun() -> float:
    began = time.time()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(WORKERS)]
    out = _run([*command, str(STOCK)])
    return float(json.loads(out.splitlines()[-1])["time"]) - began


HELP, IMPORT_TORCH = TimedCommand("lockstep --help", _help), TimedCommand("python -c 'import torch'", _import_torch)
SPAWN, TORCHRUN = TimedCommand("lockstep run, by spawn", _spawn), TimedCommand("a stock script, by torchrun", _torchrun)
REPEATS = repeats(5)
WARM_UP = BenchOption(
    name="warm-up", help="Rounds before these that only fill the disk cache.", default=1, quick=0, minimum=0
)
BENCHMARK = Benchmark(
    name="start",
    help="Time from a command to its help text and to the first training step, beside stock PyTorch",
    options=(REPEATS, WARM_UP),
    run=run,
)
