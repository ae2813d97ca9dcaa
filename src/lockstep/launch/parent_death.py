"""Processes and the ones that started them: nobody outlives the command, even if that is killed."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from multiprocessing.connection import wait

PR_SET_PDEATHSIG = 1


def die_with_parent(how: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel to end this process when its parent is gone; it holds across exec."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, how)


def die_with_starter(how: signal.Signals = signal.SIGKILL) -> None:
    """End this process when the one that asked the fork server for it is gone.

    The server is this process's parent and lives as long as any of its children, so the kernel's own way
    does not help here: a thread waits for the starter's end of a pipe to close.
    """
    starter = multiprocessing.parent_process()
    if starter is None:
        return
    sentinel = starter.sentinel

    def follow() -> None:
        wait([sentinel])
        os.kill(os.getpid(), how)

    threading.Thread(target=follow, name="lockstep follows its starter", daemon=True).start()
