"""`spawn`: processes on this machine, forked from a server that has imported torch once.

    lockstep (no torch)                fork server                       ranks
    1 start  ------------------------> import torch, once
    2 start rank r  -----------------> fork  --------------------------> set variables, join, train
    3 wait for the first sentinel <-------------------- exit status ---- end
    4 if one failed: end the others. If this process ends: each rank notices and ends

Python's own fork server does the forking. It imports modules and does nothing else, so no thread, no device context and
no lock is ever copied into a rank. A script is not forked: it gets a new Python process, because it may not need torch.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from multiprocessing import forkserver
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from lockstep.launch.base import Job, Launcher, Outcome, rendezvous_file, threads_for
from lockstep.launch.parent_death import die_with_parent, die_with_starter
from lockstep.registry import LauncherDescription
from lockstep.torch_compat.startup import COMPILER

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext

PRELOADED = ["torch", "torch.distributed", "lockstep.cli", "lockstep.launch.worker", "lockstep.train.loop"]
PRELOADED += ["lockstep.train.preflight", "lockstep.strategies.torch_ddp.strategy", "psutil"]
GRACE_SECONDS = 2.0
LAUNCHER = LauncherDescription(
    name="spawn",
    help="processes of this machine, forked from a server that has imported torch once",
    implementation="lockstep.launch.spawn:Spawn",
    unavailable=lambda: (
        None if sys.platform.startswith("linux") else "launcher spawn needs Linux: use --launcher torchrun"
    ),
    this_host=True,
    forks=True,
    local_rendezvous=True,
)


class Child(Protocol):
    """A started rank."""

    sentinel: int
    """A descriptor that becomes readable when the rank has ended."""

    def code(self, seconds: float | None) -> int | None:
        """Wait for the end and return the exit code, negative for a signal; None if it still runs."""
        ...

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it still runs."""
        ...


class Spawn(Launcher):
    """Ranks of this machine; the default for more than one worker."""

    def start(self, job: Job) -> Outcome:
        """Start the ranks, wait for them, and end the others when one fails."""
        make = FreshProcess if job.script else ForkedProcess
        with rendezvous_file() as rendezvous:
            children: list[Child] = []
            try:
                children += (make(job, environment(job, rank, rendezvous)) for rank in range(job.workers))
                return _watch(children, job)
            finally:
                _end(children)


class ForkedProcess:
    """A rank forked from the server."""

    def __init__(self, job: Job, variables: dict[str, str]) -> None:
        self._process = context(trains=True).Process(target=_rank, args=(job.folder, variables))
        self._process.start()
        self.sentinel = self._process.sentinel

    def code(self, seconds: float | None) -> int | None:
        """Wait for the end."""
        self._process.join(seconds)
        return self._process.exitcode

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it still runs."""
        if self._process.pid is not None and self._process.is_alive():
            with contextlib.suppress(ProcessLookupError):  # it ended since, and the server has collected it
                os.kill(self._process.pid, number)


class FreshProcess:
    """A rank in a new Python process."""

    def __init__(self, job: Job, variables: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            job.command,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            preexec_fn=die_with_parent,
        )
        self.sentinel = os.pidfd_open(self._process.pid)

    def code(self, seconds: float | None) -> int | None:
        """Wait for the end."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)


def context(*, trains: bool = False) -> ForkServerContext:
    """Return the multiprocessing context whose server has imported torch; the first call decides what it imports.

    `trains` means that workers will be forked from it, and not only the check of a recipe.
    """
    chosen = multiprocessing.get_context("forkserver")
    chosen.set_forkserver_preload([*PRELOADED, COMPILER] if trains else PRELOADED)
    # Ctrl-C in a terminal reaches every process of the command. The server, and all that is forked from it, leave it to
    # the starter: they take over that it is ignored.
    with _ignoring_ctrl_c():
        forkserver.ensure_running()
    return chosen


@contextlib.contextmanager
def _ignoring_ctrl_c() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers, and only there Ctrl-C is noticed
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def environment(job: Job, rank: int, rendezvous: str) -> dict[str, str]:
    """Return the variables of one rank."""
    return {
        "LOCKSTEP_LAUNCHER": "spawn",
        "LOCKSTEP_RENDEZVOUS": rendezvous,
        "RANK": str(rank),
        "WORLD_SIZE": str(job.workers),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(job.workers),
        **threads_for(job),
        **job.variables,
    }


def _rank(folder: Path, variables: dict[str, str]) -> None:
    """Run this rank in the forked process."""
    die_with_starter()
    os.environ.update(variables)
    from lockstep.launch.process_exit import exit_now
    from lockstep.launch.worker import work

    exit_now(work(folder))


def _watch(children: Sequence[Child], job: Job) -> Outcome:
    """Wait until all have succeeded, or one has failed."""
    from lockstep.train.failure import finished

    running = dict(enumerate(children))
    while running:
        ready = wait([child.sentinel for child in running.values()])
        for rank in [rank for rank, child in running.items() if child.sentinel in ready]:
            code = running.pop(rank).code(None) or 0
            if code or (job.folder is not None and not finished(job.folder, rank)):
                return Outcome(code if code > 0 else 1, {rank: code})
    return Outcome(0)


def _end(children: Sequence[Child]) -> None:
    """End all that still run: with SIGTERM, then with SIGKILL."""
    for child in children:
        child.send(signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    for child in children:
        if child.code(max(0.0, deadline - time.monotonic())) is None:
            child.send(signal.SIGKILL)
            child.code(None)
        if isinstance(child, FreshProcess):
            os.close(child.sentinel)
