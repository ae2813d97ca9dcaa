"""How much memory a worker takes, and the name of what was measured."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

_STATM = Path("/proc/self/statm")


def now(device: str) -> int:
    """Return the bytes in use."""
    if device == "cpu":
        if _STATM.exists():  # read once a step: psutil takes several times as long
            return int(_STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        import psutil

        return int(psutil.Process().memory_info().rss)
    from lockstep.torch_compat.devices import memory_allocated

    return memory_allocated()


class Peak(NamedTuple):
    """The most memory that a worker took at once."""

    size: int
    """Bytes in use."""
    reserved: int | None
    """Bytes of the device that torch held, in use or kept for the next use; None on the CPU."""
    measure: str
    """What `size` is."""


def peak(device: str) -> Peak:
    """Return the most memory that was taken at once."""
    if device == "cpu":
        import resource

        # Linux counts in KiB, macOS in bytes.
        unit = 1 if sys.platform == "darwin" else 1024
        return Peak(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, None, "peak RSS")
    from lockstep.torch_compat.devices import max_memory_allocated, max_memory_reserved

    return Peak(max_memory_allocated(), max_memory_reserved(), "peak allocated on the device")
