"""Memory now and at its peak, by the measure that a run reports; the peak can be begun anew.

[Note: the peak since]
Linux tells the most memory of a process so far (VmHWM), and begins to count anew when 5 is written to clear_refs.
Where that is not allowed, the peak is that of the whole life of the process: a little too much, never too little.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import re
from pathlib import Path

from lockstep.data.free_memory import free_bytes
from lockstep.torch_compat.devices import device_memory, reset_max_memory_allocated
from lockstep.train import memory_use

_CLEAR, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


class LaneMeter:
    """Measures this process, or its device."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.measure = memory_use.peak(device).measure

    def free(self) -> int:
        """Return the bytes that are free on this machine, or on the device."""
        return free_bytes() if self.device == "cpu" else device_memory()

    def now(self) -> int:
        """Return the bytes in use."""
        return memory_use.now(self.device)

    def begin(self) -> int:
        """Give back what was freed, and count the peak from now on; return the bytes in use."""
        gc.collect()
        if self.device != "cpu":
            reset_max_memory_allocated()
            return self.now()
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
        with contextlib.suppress(OSError):  # see [Note: the peak since]
            _CLEAR.write_text("5")
        return self.now()

    def peak(self) -> int:
        """Return the most bytes in use at once since `begin`."""
        if self.device == "cpu" and _STATUS.exists():
            told = re.search(r"VmHWM:\s+(\d+) kB", _STATUS.read_text())
            if told is not None:
                return int(told[1]) * 1024
        return memory_use.peak(self.device).size
