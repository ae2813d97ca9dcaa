"""Freed memory stays with the process: a training step asks for the same again.

[Note: page faults]
glibc gives the top of the heap back to the kernel as soon as more than a few tens of MiB of it are free. A training
step frees its gradients and takes as much again a moment later, and the kernel has to clear each page anew: on a
perceptron of 26 MB up to 2,000 faults and a tenth of the step, in some processes, and none in others, as their heaps
happen to lie. So the limits are raised. Peaks of memory stay what they are.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

from lockstep import process_wide

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_KEPT: Final = 1 << 30
_OLD_LIMIT: Final = 1 << 25
"""The most that older versions of glibc take for the second."""
_USERS_OWN: Final = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD")


def keep_freed_memory() -> bool:
    """Have glibc keep freed memory; False if there is none, or if the user has set it up or wants it left alone."""
    if process_wide.leave("malloc") or any(name in os.environ for name in _USERS_OWN):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # Either call ends the limits' own growth, so both are needed.
    large = mallopt(_MMAP_THRESHOLD, _KEPT) or mallopt(_MMAP_THRESHOLD, _OLD_LIMIT)
    return bool(large and mallopt(_TRIM_THRESHOLD, _KEPT))
