"""`spawn`: processes on this machine, forked from a server that has imported torch once.

    lockstep (no torch)                fork server                       ranks
      1. start  ---------------------> imports torch, once
      2. start rank r  --------------> fork  --------------------------> sets its variables, joins, trains
      3. wait for the first sentinel <------------------- exit status ---- ends
      4. one failed: end the others; this process gone: the server ends, and the kernel ends the ranks

Python's own fork server does the forking. It imports modules and does nothing else, so no thread, no
device context and no lock is ever copied into a rank.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import time
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.launch.base import Job, Launcher, Outcome, meeting_file, threads_for

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext, ForkServerProcess

PRELOADED = ["torch", "torch.distributed", "lockstep.cli", "lockstep.launch.worker", "lockstep.train.loop"]
PRELOADED += ["lockstep.train.preflight", "lockstep.strategies.torch_ddp", "psutil"]
GRACE_SECONDS = 2.0
PR_SET_PDEATHSIG = 1


class Spawn(Launcher):
    """Ranks of this machine; the default for more than one worker."""

    name = "spawn"

    def unavailable(self) -> str | None:
        """Need a system that forks."""
        return None if sys.platform.startswith("linux") else "launcher spawn needs Linux"

    def start(self, job: Job) -> Outcome:
        """Start, wait, and end the rest when one fails."""
        with meeting_file() as meeting:
            processes = []
            try:
                for rank in range(job.workers):
                    variables = environment(job, rank, meeting)
                    process = context().Process(target=_rank, args=(job, variables), name=f"lockstep rank {rank}")
                    process.start()
                    processes.append(process)
                return _watch(processes, job)
            finally:
                _end(processes)


def context() -> ForkServerContext:
    """Return the multiprocessing context whose server has everything imported."""
    chosen = multiprocessing.get_context("forkserver")
    chosen.set_forkserver_preload(PRELOADED)
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


def _rank(job: Job, variables: dict[str, str]) -> None:
    """Run in the forked process: become this rank."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the starter ends the ranks; a bar would break otherwise
    os.environ.update(variables)
    if job.script:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.execve(job.command[0], job.command, dict(os.environ))  # noqa: S606 - a script gets a Python of its own
    from lockstep.launch.worker import leave, work

    leave(work(Path(str(job.folder))))


def die_with_parent(how: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel to end this process when the one that started it is gone."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, how)


def _watch(processes: list[ForkServerProcess], job: Job) -> Outcome:
    """Wait until all have ended well, or one has not."""
    from lockstep.train.failure import finished

    running: dict[object, int] = {process.sentinel: rank for rank, process in enumerate(processes)}
    while running:
        for ready in wait([processes[rank].sentinel for rank in running.values()]):
            rank = running.pop(ready)
            processes[rank].join()
            code = processes[rank].exitcode or 0
            if code or (job.folder is not None and not finished(job.folder, rank)):
                return Outcome(code if code > 0 else 1, {rank: code})
    return Outcome(0, dict.fromkeys(range(job.workers), 0))


def _end(processes: list[ForkServerProcess]) -> None:
    """End what still runs: politely, then not."""
    for process in processes:
        if process.is_alive():
            process.terminate()
    deadline = time.monotonic() + GRACE_SECONDS
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()
        process.close()
