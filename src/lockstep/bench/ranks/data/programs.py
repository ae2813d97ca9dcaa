"""Starting the programs of `lockstep bench data`. A limit of the machine is a reason; any other failure is an error."""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep.bench.ranks.data.loader_epochs import RANKS, epochs
from lockstep.bench.ranks.data.sides import make
from lockstep.bench.ranks.data.starting import NO_ANSWER, SECONDS
from lockstep.bench.ranks.processes import Ranks, TooLong
from lockstep.bench.ranks.tracebacks import first_traceback
from lockstep.errors import RunFailed

TRAINING_SECONDS = 300.0
LIMITS = (
    "Too many open files",
    "received 0 items of ancdata",
    "Cannot allocate memory",
    "No space left on device",
    NO_ANSWER,
)
"""What is said if a side needs more than this machine allows."""


def start_ranks(plan: Mapping[str, Any]) -> dict[str, float] | str:
    """Return what a start took and what its ranks hold, or which limit of the machine stopped it.

    It is made by a program of its own: see [Note: the program's own import].
    """
    command = [sys.executable, "-m", "lockstep.bench.ranks.data.starting", json.dumps(dict(plan))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=2 * SECONDS)
    except subprocess.TimeoutExpired:
        return f"no end after {2 * SECONDS:.0f} s"
    if done.returncode:
        raise RunFailed(f"the program that starts ranks with a {plan['side']} failed:\n{first_traceback(done.stderr)}")
    started: dict[str, Any] = json.loads(done.stdout)
    why_not: str = started.get("why_not", "")
    if why_not and _limit(why_not + done.stderr) is None:
        raise RunFailed(f"a rank with a {plan['side']} failed:\n{first_traceback(done.stderr) or why_not}")
    if not why_not:
        sys.stderr.write(done.stderr)
    return why_not or started


def read_epochs(
    sides: Sequence[str], values: Any, workers: Sequence[int], rounds: int
) -> dict[str, dict[int, list[float]]]:
    """Return the seconds of epochs, by side and loader workers; one process reads them, and gets the data from this."""
    context: Any = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe(duplex=False)
    data = {side: make(side, values) for side in sides}
    process = context.Process(target=epochs, args=(data, workers, rounds, theirs))
    process.start()
    theirs.close()
    try:
        seconds = mine.recv()
    except EOFError:
        process.join()
        raise RunFailed(f"the process that reads epochs ended with exit code {process.exitcode}") from None
    finally:
        process.join()
    if isinstance(seconds, str):
        raise RunFailed(f"the process that reads epochs failed:\n{seconds}")
    return {side: {count: seconds[f"{side}/{count}"] for count in workers} for side in sides}


def in_lightning(side: str, items: int, elements: int) -> float | str:
    """Return the seconds of a fit, start of its ranks included; or why there are none."""
    if importlib.util.find_spec("lightning") is None:
        return "not installed"
    command = [sys.executable, "-m", "lockstep.bench.ranks.data.in_lightning", side, str(items), str(elements)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TRAINING_SECONDS)
    except subprocess.TimeoutExpired:
        return f"no end after {TRAINING_SECONDS:.0f} s"
    return float(done.stdout.split()[-1]) if done.returncode == 0 else _reason(side, "in Lightning", done.stderr)


def by_hand(side: str, items: int, elements: int) -> float | str:
    """Return the seconds from starting the ranks, each on its own, to the end of the last; or why there are none."""
    common = [sys.executable, "-m", "lockstep.bench.ranks.data.by_hand", side, str(items), str(elements)]
    with tempfile.TemporaryDirectory() as folder, Ranks(Path(folder)) as ranks:
        began = time.perf_counter()
        for rank in range(RANKS):
            ranks.start([*common, str(rank), str(RANKS), str(Path(folder) / "meet")])
        try:
            failed = ranks.wait(TRAINING_SECONDS)
        except TooLong as error:
            return str(error)
        took = time.perf_counter() - began
        if failed:
            return _reason(side, "in ranks started by hand", ranks.printed(next(iter(failed))))
        ranks.pass_on()
        return took


def _reason(side: str, where: str, printed: str) -> str:
    limit = _limit(printed)
    if limit is None:
        raise RunFailed(f"the training on a {side} {where} failed:\n{first_traceback(printed)}")
    return limit


def _limit(text: str) -> str | None:
    return next((limit for limit in LIMITS if limit in text), None)
