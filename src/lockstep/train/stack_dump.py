"""Where a rank is when it no longer moves: its stack, in `rank-N.stack.txt` of the run folder.

A watchdog of Python's faulthandler writes it, in C and without the interpreter's lock: so also while the rank is in a C
call that never returns. It is set again as the rank moves, rarely, because setting it starts a thread.
"""

from __future__ import annotations

import contextlib
import faulthandler
import re
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Final

from lockstep.train.stall_timer import StallTimer

OWN_END_SECONDS: Final = 5.0
"""How long after `--stall-limit` a rank is killed by its own timer."""
PATTERN: Final = "rank-*.stack.txt"
LEAST_SECONDS: Final = 60.0
"""A rank that stands still for less is not spoken of."""
MULTIPLE: Final = 20
"""Of its usual step: how long a rank stands still before it is spoken of."""
FIRST_SECONDS: Final = 300.0
"""The same before the first step, which compiles, fills caches and reads data for the first time."""
LAST_STEPS: Final = 20
"""Steps whose median is the usual one."""
WAITING = re.compile(r'File ".*/(lockstep/comm|lockstep/exchange|torch/distributed)/')
FRAMES = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$', re.MULTILINE)


def stack_path(folder: Path, rank: int) -> Path:
    """Return the file of a rank."""
    return folder / f"rank-{rank}.stack.txt"


def allowed_seconds(steps: Sequence[float], limit: float | None) -> float:
    """Return for how long a rank with these last steps (in seconds) may stand still before it is spoken of. Pure."""
    if not steps:
        return max(FIRST_SECONDS, limit or 0.0)
    usual = max(LEAST_SECONDS, MULTIPLE * median(steps[-LAST_STEPS:]))
    return usual if limit is None else min(usual, limit / 2)


def main_stack(text: str) -> str:
    """Return the main thread's stack from the last dump of a file, the innermost call first; empty if none. Pure."""
    last = text.rpartition("Timeout (")[2]
    return last.rpartition("Thread 0x")[2].partition("\n")[2].rstrip() if "Thread 0x" in last else ""


def waits(stack: str) -> bool:
    """Say whether a stack is that of a rank which waits for another one. Pure."""
    return any(WAITING.search(line) for line in stack.splitlines()[:4])


def innermost(stack: str) -> str:
    """Return the innermost call of a stack in words; empty if there is none. Pure."""
    match = FRAMES.search(stack)
    return f"{match['file']}, line {match['line']}, in {match['function']}" if match else ""


def remove_empty(folder: Path) -> None:
    """Remove the files of ranks that never stood still."""
    for path in folder.glob(PATTERN):
        with contextlib.suppress(OSError):
            if not path.stat().st_size:
                path.unlink()


class StackDump(contextlib.AbstractContextManager["StackDump"]):
    """Sets the watchdog of one rank as it moves; a file that nothing was written to is removed at the end."""

    def __init__(self, folder: Path, rank: int, limit: float | None) -> None:
        self._path, self._limit = stack_path(folder, rank), limit
        self._file = None
        with contextlib.suppress(OSError):  # no room: the run goes on without it
            self._file = open(self._path, "wb", buffering=0)  # noqa: SIM115 - closed by __exit__
        self._next = 0.0
        # Who watches the run ends it at the limit; a rank that nobody can reach ends soon after.
        self._timer = None if limit is None else StallTimer(limit + OWN_END_SECONDS)
        self._set([])

    def moved(self, steps: Sequence[float]) -> None:
        """Say that one more step is done; `steps` are the seconds of all of them."""
        if self._timer is not None:
            self._timer.set()
        if time.monotonic() >= self._next:
            self._set(steps)

    def _set(self, steps: Sequence[float]) -> None:
        if self._file is None:
            return
        seconds = allowed_seconds(steps, self._limit)
        self._next = time.monotonic() + (seconds / 4 if steps else 0.0)
        faulthandler.dump_traceback_later(seconds, file=self._file)

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.close()
        if self._file is None:
            return
        faulthandler.cancel_dump_traceback_later()
        self._file.close()
        with contextlib.suppress(OSError):
            if not self._path.stat().st_size:
                self._path.unlink()
