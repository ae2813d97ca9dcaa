"""What the processes of `lockstep bench data` do: read through a stock DataLoader, and say what it took."""

from __future__ import annotations

import ctypes
import gc
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

import lockstep.bench.ranks.data.sides  # noqa: F401 - before the data comes, so that importing it is nobody's data

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.synchronize import Barrier

BATCH = 64
RANKS, EPOCHS, RATE = 2, 2, 1e-4
"""Of the small training."""
READS = 600_000
"""Items that are read in the epochs of one side at least, so that short epochs are repeated more often."""


class PickleStamp:
    """Two of them around the data say what it costs to hand over: when each was pickled, and when unpickled."""

    def __init__(self) -> None:
        self.pickled = 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        self.pickled = time.perf_counter()
        return time.perf_counter, ()


def loader(data: Any, rank: int, ranks: int, workers: int) -> DataLoader[Any]:
    """Return a stock loader over one rank's share of a shuffled epoch, the same for every side."""
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(7))[rank::ranks].tolist()
    context = "fork" if workers else None
    return DataLoader(data, BATCH, sampler=order, num_workers=workers, multiprocessing_context=context)


def read(batches: Any) -> float:
    """Go through an epoch; return the seconds."""
    began = time.perf_counter()
    for batch in batches:
        batch[0, 0].item()
    return time.perf_counter() - began


def first_epoch(handed: list[Any], rank: int, ranks: int, together: Barrier, pipe: Connection) -> None:
    """Run in a spawned rank: the first batch, an epoch, and what the process holds with the data and without it.

    `handed` was sent as the data between two stamps. Before its first batch a rank does nothing else, and all ranks
    wait for each other after it: what several map is counted in parts, so all must be there, and have it mapped.
    """
    began, data, ended = handed
    torch.set_num_threads(1)
    next(iter(loader(torch.zeros(BATCH * ranks, 1), rank, ranks, 0)))  # what a loader needs is not the data's
    reading = time.perf_counter()
    source = iter(loader(data, rank, ranks, 0))
    next(source)
    first, took = time.time(), ended - began + time.perf_counter() - reading
    together.wait()
    read(source)
    files = len(list(Path("/proc/self/fd").iterdir()))
    held = _memory(together)
    handed.clear()  # the process itself has it too, as an argument
    del data, source
    without = _memory(together)
    pipe.send({"first": first, "took": took, "descriptors": files, "without": without["part"], **held})


def _settle() -> None:
    """Do once what any training does: without it the allocator gives each batch back to the system, or not, by luck."""
    torch.set_num_threads(1)
    torch.zeros(24 * 2**20, dtype=torch.uint8)


def epochs(sides: dict[str, Any], workers: Sequence[int], rounds: int, pipe: Connection) -> None:
    """Run in one spawned process: send the seconds of each side's epochs, or the traceback of what went wrong."""
    try:
        pipe.send(_time_epochs(sides, workers, rounds))
    except Exception:
        pipe.send(traceback.format_exc())


def _time_epochs(sides: dict[str, Any], workers: Sequence[int], rounds: int) -> dict[str, list[float]]:
    """Read epochs of all sides in turn, there and back, after a first round to warm up.

    Short epochs vary most, so there are more of them; those with workers take longest, so there are fewer.
    """
    _settle()
    timed: dict[str, list[float]] = {f"{side}/{count}": [] for side in sides for count in workers}
    for count in workers:
        items = len(next(iter(sides.values())))
        turns = max(3, min(rounds, READS // items // 4)) if count else max(7, min(8 * rounds, READS // items))
        for turn in range(-1 if count == 0 else 0, turns):
            for side in sides if turn % 2 else reversed(sides):
                seconds = read(loader(sides[side], 0, 1, count))
                if turn >= 0:
                    timed[f"{side}/{count}"].append(seconds)
    return timed


def trim() -> None:
    """Give back what the allocator keeps for later."""
    ctypes.CDLL(None).malloc_trim(0)


def _memory(together: Barrier) -> dict[str, int]:
    """Return this process's memory in bytes: its own, what it shares, and its part of the whole."""
    gc.collect()
    trim()  # what the allocator keeps for later is nobody's data
    together.wait()
    text = Path("/proc/self/smaps_rollup").read_text()
    together.wait()
    sums = {"private": 0, "shared": 0, "part": 0}
    for line in text.splitlines()[1:]:
        name, size, *_ = line.split()
        key = {"Private": "private", "Shared": "shared"}.get(name.partition("_")[0], "part" if name == "Pss:" else "")
        if key and "Hugetlb" not in name:
            sums[key] += int(size) * 1024
    return sums
