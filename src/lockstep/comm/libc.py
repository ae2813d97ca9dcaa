"""POSIX semaphores in shared memory, called in libc: the only means by which ranks signal each other.

[Note: memory order]
Data in the segment is written by memcpy and by torch kernels: plain stores, which another core of a weakly ordered
machine (ARM) may see in any order. So no rank ever reads a plain word to learn that data is ready. Every transfer is

    writer:  stores to the segment ... sem_post(s)            reader:  sem_wait(s) ... loads from the segment

and POSIX (Base Definitions, "Memory Synchronization") lists sem_post, sem_wait, sem_trywait, sem_timedwait among the
functions that synchronize memory between threads, in whatever process they run. glibc does this with an atomic
read-modify-write: with release order in sem_post, with acquire order in sem_wait and sem_trywait. They make a system
call only when a thread sleeps. Neither ctypes nor the interpreter can move a load or store across such a call, because
for the compiler that built them it is a call of an unknown function. No word is read without a semaphore in between; a
change that does so must change this note first.
"""

from __future__ import annotations

import ctypes
import time
from typing import Final

SEMAPHORE_BYTES: Final = 64
"""A sem_t has 16 to 32 bytes; each gets a cache line of its own, so that no two share one."""

# PyDLL keeps the interpreter lock: these calls take less time than releasing the lock and taking it again.
# CDLL releases it: for calls that sleep.
_held = ctypes.PyDLL(None, use_errno=True)
_released = ctypes.CDLL(None, use_errno=True)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_held.sem_init.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint)
post = _held.sem_post
post.argtypes = (ctypes.c_void_p,)
"""post(address): increment, and wake one sleeper. Release order."""

trywait = _held.sem_trywait
trywait.argtypes = (ctypes.c_void_p,)
"""trywait(address): decrement if positive; 0 if it did. Acquire order."""

sched_yield = _released.sched_yield
"""sched_yield(): let another process use this core, and another thread the interpreter."""

_CLOCK_MONOTONIC = 1
_clockwait = getattr(_released, "sem_clockwait", None)
if _clockwait is not None:
    _clockwait.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(_Timespec))
_timedwait = _released.sem_timedwait
_timedwait.argtypes = (ctypes.c_void_p, ctypes.POINTER(_Timespec))


def init(address: int, value: int = 0) -> None:
    """Initialise a semaphore that several processes may use."""
    if _held.sem_init(address, 1, value) != 0:
        raise OSError(ctypes.get_errno(), "sem_init")


def timed_wait(address: int, seconds: float) -> bool:
    """Sleep until the semaphore could be decremented (True), or the time is over or a signal came (False)."""
    # glibc before 2.30 has only the wall clock; if that jumps, one check of the peers comes early or late.
    clock = time.monotonic() if _clockwait is not None else time.time()
    whole, part = divmod(clock + seconds, 1)
    until = ctypes.byref(_Timespec(int(whole), int(part * 1e9)))
    if _clockwait is not None:
        return bool(_clockwait(address, _CLOCK_MONOTONIC, until) == 0)
    return bool(_timedwait(address, until) == 0)


def address_of(buffer: memoryview) -> int:
    """Return where a writable buffer starts."""
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))
