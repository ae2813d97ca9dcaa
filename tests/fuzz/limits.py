"""Limits on time and memory for a case: a hang or a flood becomes an error that names it."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

CASE_SECONDS = 20
"""Of processor time: a busy machine is no fault."""
WAITING_SECONDS = 300
"""Of any time: a case that waits for ever uses no processor."""
MORE_BYTES = 3 * 2**30
"""Addresses that all cases of a process may use beyond what it has at the start; torch maps a lot of its own."""


class TooSlow(Exception):
    """A case took longer than it may."""


def _too_slow(number: int, frame: FrameType | None) -> None:
    raise TooSlow(f"no end after {CASE_SECONDS} s of computing, or {WAITING_SECONDS} s of waiting")


@contextmanager
def limited_time() -> Iterator[None]:
    """Raise TooSlow inside when the time is over; for the main thread."""
    before = {number: signal.signal(number, _too_slow) for number in (signal.SIGALRM, signal.SIGPROF)}
    signal.setitimer(signal.ITIMER_PROF, CASE_SECONDS)
    signal.alarm(WAITING_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        for number, handler in before.items():
            signal.signal(number, handler)


def limit_memory() -> None:
    """Limit what this process may still map, once: reading a hostile file then raises MemoryError."""
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        return
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MORE_BYTES, used + MORE_BYTES))
