"""The contract of a launcher: start the processes of a world, wait for them, and report which failed first."""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from lockstep.world.resources import OMP

WORKER = "lockstep.launch.worker"
"""The program of a rank of our own strategies."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What every process of a world runs: a recipe's run folder, or a script."""

    workers: int
    """How many processes."""
    folder: Path | None = None
    """The run folder, for a recipe."""
    module: str = WORKER
    """The program of a rank, for a recipe."""
    script: tuple[str, ...] = ()
    """A Python script and its arguments, or `-m`, a module and its arguments, if there is no recipe."""
    python: str = sys.executable
    """The Python of every rank."""
    nodes: int | None = None
    """The number of hosts, for launchers that can choose it."""
    threads: int | None = None
    """Threads per worker; None: they are left to each rank."""
    extra: tuple[str, ...] = ()
    """More arguments for srun or mpirun."""
    stoppable: bool = False
    """Whether the ranks act on the signal before a time limit: then a launcher passes it on."""
    variables: dict[str, str] = field(default_factory=dict)
    """More environment variables for every rank."""

    @property
    def command(self) -> list[str]:
        """The command of each rank."""
        if self.folder is not None:
            return [self.python, "-m", self.module, str(self.folder)]
        return [self.python, *self.script]

    @property
    def foreign_command(self) -> list[str]:
        """The command under a launcher that does not set torch's variables: it sets them, then runs the script."""
        if self.folder is not None:
            return self.command
        return [self.python, "-m", "lockstep.launch.script", *self.script]


@dataclass(frozen=True)
class Outcome:
    """How the processes ended."""

    code: int
    """0 if all ended well."""
    exits: dict[int, int] = field(default_factory=dict)
    """Exit codes by rank as far as they are known, the first failure first; negative means a signal."""
    hosts: dict[int, str] = field(default_factory=dict)
    """Where ranks ran, as far as the launcher said it: a rank that died while it started has not."""


class Launcher(ABC):
    """Starts the processes of a world, and leaves nothing behind, however they end."""

    @abstractmethod
    def start(self, job: Job) -> Outcome:
        """Start all processes, wait for them, and end the others when one fails."""


@contextmanager
def rendezvous_file() -> Iterator[str]:
    """Yield a rendezvous for the ranks of this host that leaves no file behind, even if everything is killed.

    The file has no name: it exists only in this process's descriptor table, where processes of the same user can open
    it, and ends with this process.
    """
    descriptor = os.memfd_create("lockstep-rendezvous", os.MFD_CLOEXEC)
    try:
        yield f"file:///proc/{os.getpid()}/fd/{descriptor}"
    finally:
        os.close(descriptor)


def threads_for(job: Job) -> dict[str, str]:
    """Return the variables that set a worker's number of threads, if the job has one."""
    return {} if job.threads is None else {OMP: str(job.threads)}
