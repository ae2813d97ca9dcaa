"""Ending a rank at once, noticed by every launcher, with nothing left that Python would report as leaked."""

from __future__ import annotations

import os
import signal
import sys
from multiprocessing import util
from typing import NoReturn

from lockstep.world.detect import detect


def exit_now(code: int) -> NoReturn:
    """End the process at once: after a failure, threads that wait for a dead peer would keep it alive."""
    sys.stdout.flush()
    sys.stderr.flush()
    release_semaphores()
    if code and detect(os.environ).launcher == "mpich":
        # Hydra ends a job after a signal, but after an exit code it lets the other ranks wait for ever.
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(code)


def release_semaphores() -> None:
    """Remove the named semaphores that this process made by multiprocessing, as an ordinary exit does.

    tqdm makes one for its first progress bar, and torch.compile shows such a bar. The fork server's resource tracker
    lives until the command ends, and would then warn of each semaphore that is left.
    """
    synchronize = sys.modules.get("multiprocessing.synchronize")
    if synchronize is None:
        return
    for finalizer in list(util._finalizer_registry.values()):  # type: ignore[attr-defined]
        if finalizer._callback is synchronize.SemLock._cleanup:
            finalizer()
