"""How much memory a worker takes, and the name of what was measured."""

from __future__ import annotations

import sys


def now(device: str) -> int:
    """Return the bytes in use."""
    if device == "cpu":
        import psutil

        return int(psutil.Process().memory_info().rss)
    import torch

    return int(torch.accelerator.memory_allocated())


def peak(device: str) -> tuple[int, str]:
    """Return the most bytes that were in use at once, and which measure that is."""
    if device == "cpu":
        import resource

        # Linux counts in KiB, macOS in bytes.
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, "peak RSS"
    import torch

    return int(torch.accelerator.max_memory_allocated()), "peak allocated on the device"
