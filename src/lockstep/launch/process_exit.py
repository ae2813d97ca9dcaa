"""Ending a rank at once, noticed by every launcher, with nothing left that Python would report as leaked."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from multiprocessing import util
from typing import NoReturn

from lockstep.launch.socket_folder import remove_folder
from lockstep.world.detect import detect


def exit_now(code: int) -> NoReturn:
    """End the process at once: after a failure, threads that wait for a dead peer would keep it alive."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # the descriptor was closed
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
    release_resources()
    if code and detect(os.environ).launcher == "mpich":
        # Hydra ends a job after a signal, but after an exit code it lets the other ranks wait for ever.
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(code)


def release_resources() -> None:
    """Remove the named semaphores and the folder of sockets that this process made by multiprocessing.

    An ordinary exit does so. tqdm makes a semaphore for its first progress bar, and torch.compile shows such a bar; the
    fork server's resource tracker lives until the command ends, and would then warn of each that is left. A DataLoader
    whose workers send tensors makes the folder.
    """
    synchronize = sys.modules.get("multiprocessing.synchronize")
    callbacks = [remove_folder, util._remove_temp_dir]  # type: ignore[attr-defined]
    callbacks += [] if synchronize is None else [synchronize.SemLock._cleanup]
    for finalizer in list(util._finalizer_registry.values()):  # type: ignore[attr-defined]
        if finalizer._callback in callbacks:
            finalizer()
