"""How much memory a worker takes, and the name of what was measured."""

from __future__ import annotations

import os
import sys
from pathlib import Path

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


def peak(device: str) -> tuple[int, str]:
    """Return the most bytes that were in use at once, and which measure that is."""
    if device == "cpu":
        import resource

        # Linux counts in KiB, macOS in bytes.
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, "peak RSS"
    from lockstep.torch_compat.devices import max_memory_allocated

    return max_memory_allocated(), "peak allocated on the device"
