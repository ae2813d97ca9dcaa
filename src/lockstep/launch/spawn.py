"""`spawn`: processes on this machine, forked from a server that has imported torch once.

    lockstep (no torch)                fork server                       ranks
      1. start  ---------------------> imports torch, once
      2. start rank r  --------------> fork  --------------------------> sets its variables, joins, trains
      3. wait for the first sentinel <------------------- exit status ---- ends
      4. one failed: end the others; this process gone: each rank notices and ends

Python's own fork server does the forking. It imports modules and does nothing else, so no thread, no
device context and no lock is ever copied into a rank. A script is not forked: it gets a fresh Python,
because it may not want torch at all.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from lockstep.launch.base import Job, Launcher, Outcome, meeting_file, threads_for
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
    forks=True,
    meets_here=True,
)


class Child(Protocol):
    """A started rank."""

    sentinel: int
    """A descriptor that becomes readable when it has ended."""

    def code(self, seconds: float | None) -> int | None:
        """Wait for the end and return the exit code, negative for a signal; None if it still runs."""
        ...

    def send(self, number: signal.Signals) -> None:
        """Signal it, if it still runs."""
        ...


class Spawn(Launcher):
    """Ranks of this machine; the default for more than one worker."""

    def start(self, job: Job) -> Outcome:
        """Start, wait, and end the rest when one fails."""
        make = Fresh if job.script else Forked
        with meeting_file() as meeting:
            children: list[Child] = []
            try:
                children += (make(job, environment(job, rank, meeting)) for rank in range(job.workers))
                return _watch(children, job)
            finally:
                _end(children)


class Forked:
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
        """Signal it, if it still runs."""
        if self._process.pid is not None and self._process.is_alive():
            with contextlib.suppress(ProcessLookupError):  # it ended since, and the server has collected it
                os.kill(self._process.pid, number)


class Fresh:
    """A rank with a Python of its own."""

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
        """Signal it."""
        self._process.send_signal(number)


def context(*, trains: bool = False) -> ForkServerContext:
    """Return the multiprocessing context whose server has everything imported; the first call decides what.

    `trains` says that workers will be forked from it, and not only the check of a recipe.
    """
    chosen = multiprocessing.get_context("forkserver")
    chosen.set_forkserver_preload([*PRELOADED, COMPILER] if trains else PRELOADED)
    return chosen


def environment(job: Job, rank: int, meeting: str) -> dict[str, str]:
    """Return the variables of one rank."""
    return {
        "LOCKSTEP_LAUNCHER": "spawn",
        "LOCKSTEP_RENDEZVOUS": meeting,
        "RANK": str(rank),
        "WORLD_SIZE": str(job.workers),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(job.workers),
        **threads_for(job),
        **job.variables,
    }


def _rank(folder: Path, variables: dict[str, str]) -> None:
    """Run in the forked process: become this rank."""
    die_with_starter()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the starter's to handle
    os.environ.update(variables)
    from lockstep.launch.worker import leave, work

    leave(work(folder))


def _watch(children: Sequence[Child], job: Job) -> Outcome:
    """Wait until all have ended well, or one has not."""
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
    """End what still runs: politely, then not."""
    for child in children:
        child.send(signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    for child in children:
        if child.code(max(0.0, deadline - time.monotonic())) is None:
            child.send(signal.SIGKILL)
            child.code(None)
        if isinstance(child, Fresh):
            os.close(child.sentinel)
