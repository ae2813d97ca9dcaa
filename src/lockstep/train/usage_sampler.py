"""What a worker uses of its machine, sampled by itself: CPUs, memory, and its GPU where NVML tells.

A thread looks once a second, and less often in a long run. A look reads a few files of /proc; `lockstep bench measure`
shows its cost. Processes that the worker has started, such as those that load data, count as its own.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from lockstep.train.nvml import Gpu, open_gpu
from lockstep.train.records import CannotWrite
from lockstep.train.schema.rank_jsonl import UsageLine

if TYPE_CHECKING:
    from lockstep.train.records import Lines

FIRST_SECONDS = 0.2
"""When the first look is: a run of a few seconds has some too."""
SECONDS = 1.0
"""Between two looks, at first."""
GROWTH = 0.01
"""Between two looks there is at least this share of the time so far: a run of a day has some thousand."""
PROC = Path("/proc")
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


class UsageSampler:
    """Writes what this process uses into its records, from `with` to its end."""

    def __init__(self, records: Lines, device: str) -> None:
        self._records = records
        self._gpu: Gpu | None = open_gpu(device)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lockstep usage", daemon=True)
        self._before = (time.monotonic(), cpu_seconds())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        with contextlib.suppress(CannotWrite):  # what stopped the run is told by who noticed it
            if error[0] is None:
                self._records.write(self.look())

    def look(self) -> UsageLine:
        """Return what is used now; CPUs as a mean since the look before."""
        then, used = self._before
        at, cpu = self._before = (time.monotonic(), cpu_seconds())
        load = self._gpu.load() if self._gpu is not None else None
        return UsageLine(
            time=time.time(),
            cpus=round(max(0.0, cpu - used) / max(at - then, 1e-3), 3),
            memory=memory_bytes(),
            gpu=None if load is None else load.busy,
            gpu_memory=None if load is None else load.memory,
        )

    def _run(self) -> None:
        began, pause = time.monotonic(), FIRST_SECONDS
        while not self._ended.wait(pause):
            try:
                self._records.write(self.look())
            except (CannotWrite, OSError):
                return  # the training itself finds out that the disk is full
            pause = max(SECONDS, GROWTH * (time.monotonic() - began))


def cpu_seconds() -> float:
    """Return the seconds of CPU time of this process and of those that it started, ended ones included."""
    own = os.times()
    total = own.user + own.system + own.children_user + own.children_system
    for pid in descendants():
        with contextlib.suppress(OSError, ValueError, IndexError):  # ended meanwhile
            fields = (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
            total += sum(map(int, fields[11:15])) / TICKS
    return total


def memory_bytes() -> int:
    """Return the bytes in use by this process and those that it started; what they share is counted in each."""
    total = 0
    for pid in (os.getpid(), *descendants()):
        with contextlib.suppress(OSError, ValueError, IndexError):
            total += int((PROC / str(pid) / "statm").read_bytes().split()[1]) * PAGE
    return total


def descendants() -> list[int]:
    """Return the processes that this one has started, and those that these have."""
    pids, wanted = [], [os.getpid()]
    while wanted:
        parent = wanted.pop()
        with contextlib.suppress(OSError):
            for task in (PROC / str(parent) / "task").iterdir():
                with contextlib.suppress(OSError, ValueError):
                    listed = (task / "children").read_bytes()
                    children = [int(one) for one in listed.split()]
                    pids += children
                    wanted += children
    return pids
