"""A timer of the kernel that kills this process unless it is set again: for a rank that nobody else can end.

A rank on another host may hold the interpreter, sleep in a driver or be stopped. The kernel's timer needs no help of
the process, and SIGKILL ends a stopped one too.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import signal

CLOCK_MONOTONIC, SIGEV_SIGNAL = 1, 0


class _Event(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("padding", ctypes.c_char * 48),
    )


class _Setting(ctypes.Structure):
    """Seconds and nanoseconds, of the repetition and of the first time."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("again", "again_nano", "first", "first_nano"))


class StallTimer:
    """Kills this process so many seconds after it was last set."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._libc = ctypes.CDLL(None)
        if not hasattr(self._libc, "timer_create"):  # glibc before 2.34
            self._libc = ctypes.CDLL(ctypes.util.find_library("rt"))
        self._timer = ctypes.c_void_p()
        event = _Event(signal=signal.SIGKILL, notify=SIGEV_SIGNAL)
        if self._libc.timer_create(CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(self._timer)):
            raise OSError("timer_create")

    def set(self) -> None:
        """Begin anew."""
        whole, part = divmod(self._seconds, 1)
        setting = _Setting(first=int(whole), first_nano=int(part * 1e9))
        self._libc.timer_settime(self._timer, 0, ctypes.byref(setting), None)

    def close(self) -> None:
        """Kill nobody any more."""
        self._libc.timer_delete(self._timer)
