"""POSIX semaphores in shared memory, called in libc: the only flags that ranks exchange.

[Note: memory order]
Data in the segment is written by memcpy and by torch kernels: plain stores, which a weakly ordered machine (ARM) may
show to another core in any order. So no rank ever learns from a plain word that data is ready. Every hand-over is

    writer:  stores to the segment ... sem_post(s)            reader:  sem_wait(s) ... loads from the segment

and POSIX (Base Definitions, "Memory Synchronization") lists sem_post, sem_wait, sem_trywait, sem_timedwait among the
functions that synchronize memory between threads, in whatever process they run. glibc keeps that promise with an atomic
read-modify-write of release order in sem_post and of acquire order in sem_wait and sem_trywait; they make a system call
only when somebody sleeps. ctypes and the interpreter cannot move a load or store across such a call, because the
compiler that built them sees a call of an unknown function. Words that are read without a semaphore between (none
today) would need this note changed first.
"""

from __future__ import annotations

import ctypes
import time
from typing import Final

SEMAPHORE_BYTES: Final = 64
"""A sem_t takes 16 to 32 bytes; a cache line each keeps two flags from slowing each other down."""

# PyDLL keeps the interpreter lock: the call takes less time than giving the lock away and getting it back.
# CDLL gives it away: for calls that sleep.
_held = ctypes.PyDLL(None, use_errno=True)
_released = ctypes.CDLL(None, use_errno=True)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_held.sem_init.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint)
post = _held.sem_post
post.argtypes = (ctypes.c_void_p,)
"""post(address): add one, and wake a sleeper. Release order."""

trywait = _held.sem_trywait
trywait.argtypes = (ctypes.c_void_p,)
"""trywait(address) == 0: one was taken. Acquire order."""

give_way = _released.sched_yield
"""give_way(): let another process have this core, and another thread the interpreter."""

_CLOCK_MONOTONIC = 1
_clockwait = getattr(_released, "sem_clockwait", None)
if _clockwait is not None:
    _clockwait.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(_Timespec))
_timedwait = _released.sem_timedwait
_timedwait.argtypes = (ctypes.c_void_p, ctypes.POINTER(_Timespec))


def init(address: int, value: int = 0) -> None:
    """Make a semaphore that several processes may use."""
    if _held.sem_init(address, 1, value) != 0:
        raise OSError(ctypes.get_errno(), "sem_init")


def sleep_for(address: int, seconds: float) -> bool:
    """Sleep until one could be taken (True), or the time is over or a signal came (False)."""
    # glibc before 2.30 has only the wall clock; a jump of it costs at most one early or late look around.
    clock = time.monotonic() if _clockwait is not None else time.time()
    whole, part = divmod(clock + seconds, 1)
    until = ctypes.byref(_Timespec(int(whole), int(part * 1e9)))
    if _clockwait is not None:
        return bool(_clockwait(address, _CLOCK_MONOTONIC, until) == 0)
    return bool(_timedwait(address, until) == 0)


def address_of(buffer: memoryview) -> int:
    """Return where a writable buffer starts."""
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))
