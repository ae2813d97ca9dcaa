"""What a test could leave behind: threads, processes and named segments of memory."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable
from pathlib import Path

import psutil

SEGMENTS = ("lockstep", "torch_", "psm_")  # ours, torch's and Python's; other programs may come and go
DAEMONS = ("munged", "slurm")  # kept for the whole session, and ended with it
SHM = Path("/dev/shm")


def traces() -> set[str]:
    """Return what there is now; of what the processes of another xdist worker use, nothing."""
    found = {f"thread {thread.name}" for thread in threading.enumerate() if not thread.daemon}
    me = psutil.Process()
    for child in me.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if child.name().startswith(DAEMONS):
                continue
            found.add(f"process {child.pid} {' '.join(child.cmdline())[:80]}")
    names = {path.name for path in SHM.iterdir() if path.name.startswith(SEGMENTS)}
    if names and "PYTEST_XDIST_WORKER" in os.environ:
        names -= used(names, relatives(me))
    return found | {f"segment {name}" for name in names}


def relatives(process: psutil.Process) -> list[psutil.Process]:
    """Return what a process's parent started, but not the process itself and what it started."""
    parent = process.parent()
    own = {process, *process.children(recursive=True)}
    return [one for one in parent.children(recursive=True) if one not in own] if parent else []


def used(names: Iterable[str], processes: Iterable[psutil.Process]) -> set[str]:
    """Return the segments that the processes map; what nobody maps any more is nobody's, and so everybody's leak."""
    mapped = ""
    for process in processes:
        with contextlib.suppress(OSError):  # it has ended
            mapped += Path(f"/proc/{process.pid}/maps").read_text()
    return {name for name in names if f"{SHM / name}\n" in mapped}
