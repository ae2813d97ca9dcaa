"""Ends processes together with the one that started them, even if that is killed."""

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
    """Ask the kernel to end this process when its parent ends; this also holds after exec."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, how)


def die_with_starter(how: signal.Signals = signal.SIGKILL) -> None:
    """End this process when the one that requested it from the fork server ends.

    The server is this process's parent and lives as long as any of its children, so the kernel's signal would not come:
    a thread waits until the starter's end of a pipe is closed.
    """
    starter = multiprocessing.parent_process()
    if starter is None:
        return
    sentinel = starter.sentinel

    def follow() -> None:
        wait([sentinel])
        os.kill(os.getpid(), how)

    threading.Thread(target=follow, name="lockstep watches its starter", daemon=True).start()
