"""`spawn`: processes on this machine, forked from a server that has imported torch once.

    lockstep (no torch)                fork server                       ranks
    1 start  ------------------------> import torch, once
    2 start rank r  -----------------> fork  --------------------------> set variables, join, train
    3 wait for the first sentinel <-------------------- exit status ---- end
    4 if one failed: end the others. If this process ends: the kernel ends the ranks, see parent_death.py

Python's own fork server does the forking. It imports modules and does nothing else, so no thread, no device context and
no lock is ever copied into a rank. A script, and the program of a peer, is not forked: it gets a new Python process,
because it may not need torch.
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
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from lockstep.errors import BadInput
from lockstep.launch.base import WORKER, Job, Launcher, Outcome, rendezvous_file, threads_for
from lockstep.launch.forwarding import forwarding
from lockstep.launch.parent_death import die_with_parent, die_with_starter
from lockstep.launch.socket_folder import told_to_server
from lockstep.output import lose_output
from lockstep.registry import LauncherDescription

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext, ForkServerProcess

PRELOADED = ["lockstep.launch.socket_folder", "torch", "torch.distributed", "lockstep.cli", "lockstep.launch.worker"]
PRELOADED += ["lockstep.train.loop", "lockstep.train.preflight", "lockstep.strategies.torch_ddp.strategy", "psutil"]
LAST = "lockstep.launch.after_imports"
"""Imported after everything else."""
GRACE_SECONDS = 2.0
SERVER_GONE = (
    "the process that imports torch for the workers ended while it started; what it printed last says why. Where the "
    "address space is limited (`ulimit -v`), allow more: torch alone needs some gigabytes"
)
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
        make = ForkedProcess if job.module == WORKER and not job.script else FreshProcess
        with rendezvous_file() as rendezvous:
            children: list[Child] = []
            try:
                children += (make(job, environment(job, rank, rendezvous)) for rank in range(job.workers))
                with forwarding(lambda number: _send(children, number), wanted=job.stoppable):
                    return _watch(children, job)
            finally:
                _end(children)


class ForkedProcess:
    """A rank forked from the server."""

    def __init__(self, job: Job, variables: dict[str, str]) -> None:
        forks = context()
        self._process = forks.Process(target=_rank, args=(job.folder, variables, server_number()))
        start_forked(self._process)
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
        starter = os.getpid()
        self._process = subprocess.Popen(
            job.command,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            preexec_fn=lambda: die_with_parent(parent=starter),
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


def context() -> ForkServerContext:
    """Return the multiprocessing context whose server has imported torch."""
    chosen = multiprocessing.get_context("forkserver")
    chosen.set_forkserver_preload([*PRELOADED, LAST])
    # Ctrl-C in a terminal reaches every process of the command. The server, and all that is forked from it, leave it to
    # the starter: they take over that it is ignored.
    with ctrl_c_later(), told_to_server():
        forkserver.ensure_running()
    return chosen


@contextlib.contextmanager
def ctrl_c_later() -> Iterator[None]:
    """Let processes that are started here ignore Ctrl-C; this one notices at the end if it came meanwhile."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers, and only there Ctrl-C is noticed
        return
    resource_tracker.ensure_running()  # the server's start would start it, and that lets a blocked signal through
    # Linux keeps a signal that is blocked, also where it is ignored.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


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


def start_forked(process: ForkServerProcess) -> None:
    """Start a process of the fork server; say so if the server is gone."""
    try:
        process.start()
    except (EOFError, ConnectionError) as error:
        raise BadInput(SERVER_GONE) from error


def server_number() -> int | None:
    """Return the process number of the fork server, if this process started it."""
    number: int | None = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    return number


def _rank(folder: Path, variables: dict[str, str], server: int | None) -> None:
    """Run this rank in the forked process."""
    die_with_starter(server=server)
    lose_output()
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


def _send(children: Sequence[Child], number: signal.Signals) -> None:
    for child in children:
        child.send(number)


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
