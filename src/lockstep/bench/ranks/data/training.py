"""One small training on each side's data: in Lightning's spawned ranks, and in ranks that were started by hand."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from lockstep.bench.ranks.data.reading import RANKS

SECONDS = 300.0


def in_lightning(side: str, items: int, elements: int) -> float | str:
    """Return the seconds of a fit, start of its ranks included; or why there are none."""
    if importlib.util.find_spec("lightning") is None:
        return "not installed"
    command = [sys.executable, "-m", "lockstep.bench.ranks.data.in_lightning", side, str(items), str(elements)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return f"no end after {SECONDS:.0f} s"
    return float(done.stdout.split()[-1]) if done.returncode == 0 else _why(done.stderr)


def by_hand(side: str, items: int, elements: int) -> float | str:
    """Return the seconds from starting the ranks, each on its own, to the end of the last; or why there are none."""
    with tempfile.TemporaryDirectory() as folder:
        common = [sys.executable, "-m", "lockstep.bench.ranks.data.by_hand", side, str(items), str(elements)]
        began = time.perf_counter()
        ranks = [
            subprocess.Popen(
                [*common, str(rank), str(RANKS), str(Path(folder) / "meet")], stderr=subprocess.PIPE, text=True
            )
            for rank in range(RANKS)
        ]
        try:
            told = [rank.communicate(timeout=SECONDS)[1] for rank in ranks]
        except subprocess.TimeoutExpired:
            return f"no end after {SECONDS:.0f} s"
        finally:
            _end(ranks)
        seconds = time.perf_counter() - began
    failed = [text for rank, text in zip(ranks, told, strict=True) if rank.returncode]
    return _why(failed[0]) if failed else seconds


def _end(ranks: Sequence[subprocess.Popen[str]]) -> None:
    for rank in ranks:
        if rank.poll() is None:
            rank.kill()
            rank.communicate()


def _why(text: str) -> str:
    if "Too many open files" in text:
        return "Too many open files"
    lines = text.strip().splitlines()
    return lines[-1][:80] if lines else "failed"
