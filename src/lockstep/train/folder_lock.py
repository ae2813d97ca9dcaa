"""Who uses a run folder: locks that end with the process that holds them, however it ends.

the folder itself    held alone by the rank 0 that trains in it, or by who removes it
its run.json         shared by the command that started the run, from before the workers come until they are gone
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from lockstep.errors import BadInput
from lockstep.train.schema.run_json import NAME

TRIES, PAUSE = 10, 0.05
"""Who only looks whether a folder is held has it for an instant: so a lock is tried more than once."""


@contextlib.contextmanager
def holding(folder: Path) -> Iterator[None]:
    """Hold a run folder, so that no second process trains in it; refuse one that is held."""
    with _opened(folder, os.O_DIRECTORY) as descriptor:
        if _lock(descriptor, fcntl.LOCK_EX) is False:
            raise BadInput(f"another process is training in {folder}: wait for it, or end it")
        yield


@contextlib.contextmanager
def starting(folder: Path) -> Iterator[None]:
    """Say that a run was started in a folder, while its workers may not be there yet."""
    with _opened(folder / NAME) as descriptor:
        _lock(descriptor, fcntl.LOCK_SH)
        yield


def is_held(folder: Path) -> bool | None:
    """Say whether a process uses a run folder; None where the file system has no locks."""
    with _opened(folder, os.O_DIRECTORY) as whole, _opened(folder / NAME) as setup:
        answers = [_lock(descriptor, fcntl.LOCK_EX, tries=1) for descriptor in (whole, setup)]
    if False in answers:
        return True
    return None if None in answers else False


@contextlib.contextmanager
def _opened(path: Path, flags: int = 0) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _lock(descriptor: int, kind: int, tries: int = TRIES) -> bool | None:
    """Take a lock; False if somebody else has it, None where there are no locks."""
    for left in reversed(range(tries)):
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if left:
                time.sleep(PAUSE)
        except OSError:
            return None  # a file system without locks
        else:
            return True
    return False
