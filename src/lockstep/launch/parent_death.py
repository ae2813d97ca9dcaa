"""Ends processes together with the one that started them, even if that is killed.

[Note: the kernel ends the workers]
No thread takes part: a worker that is stopped, or in a C call that holds the interpreter's lock, runs no thread.

    parent -> child                    the child asks for a signal when its parent ends (prctl), also after exec
    starter -> fork server -> rank     the server outlives the starter for as long as it has children. So a rank asks
                                       for a signal when the starter's end of a pipe is closed (fcntl), and for one
                                       when the server ends (prctl)

Whoever ended before the kernel was asked has sent no signal: both functions look once afterwards.
"""

from __future__ import annotations

import ctypes
import fcntl
import multiprocessing
import os
import signal
import sys
from collections.abc import MutableMapping
from multiprocessing.connection import wait

PR_SET_PDEATHSIG = 1
PARENT = "LOCKSTEP_PARENT"
"""The variable in which a launcher tells the processes that it starts its own process number."""


def die_with_parent(how: signal.Signals = signal.SIGKILL, parent: int | None = None) -> None:
    """Ask the kernel to end this process when its parent ends; this also holds after exec.

    `parent` is the parent's process number, if known: with another parent, this process was left behind, and ends now.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, how)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def parent_in(environ: MutableMapping[str, str]) -> int | None:
    """Take the parent's process number out of the environment, where a launcher of ours put it."""
    text = environ.pop(PARENT, "")
    return int(text) if text.isdecimal() else None


def die_with_starter(how: signal.Signals = signal.SIGKILL, server: int | None = None) -> None:
    """End this process when the one that requested it from the fork server ends; `server` is that server's number."""
    starter = multiprocessing.parent_process()
    if starter is None:
        return
    die_with_parent(parent=server)
    signal_at_hangup(starter.sentinel, how)


def signal_at_hangup(descriptor: int, how: signal.Signals) -> None:
    """Have the kernel send this process a signal when the other end of a pipe is closed, or now if it is."""
    fcntl.fcntl(descriptor, fcntl.F_SETSIG, how)
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)
    if wait([descriptor], 0):
        os.kill(os.getpid(), how)
