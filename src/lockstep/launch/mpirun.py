"""`mpirun`: Open MPI or MPICH starts the ranks; whichever the PATH says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

from lockstep.launch.base import Job, Launcher, Outcome, meeting_file, threads_for
from lockstep.launch.command import clean_environment, run_command

OPEN_MPI_ENDED = re.compile(r"mpirun noticed that process rank (\d+) .* exited on signal (\d+)")
OPEN_MPI_EXIT = re.compile(r"\s*Process name: \[\[\d+,\d+\],(\d+)\]")
OPEN_MPI_CODE = re.compile(r"\s*Exit code:\s+(\d+)")


class Mpirun(Launcher):
    """Ranks under MPI's process manager; MPI itself is not used."""

    name = "mpirun"

    def unavailable(self) -> str | None:
        """Need mpirun on the PATH."""
        return None if shutil.which("mpirun") else "mpirun is not installed here: install Open MPI or MPICH"

    def start(self, job: Job) -> Outcome:
        """Start the ranks and wait."""
        heard = Chatter()
        with meeting_file() as meeting:
            env = clean_environment({"LOCKSTEP_RENDEZVOUS": meeting, **threads_for(job), **job.variables})
            code = run_command(arguments(job, flavour()), env, heard)
        return Outcome(min(code, 255) if code >= 0 else 1, heard.exits)


def flavour() -> str:
    """Return `openmpi` or `mpich`: their flags differ."""
    asked = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, timeout=20, check=False)
    return "openmpi" if "Open MPI" in asked.stdout or "OpenRTE" in asked.stdout else "mpich"


def arguments(job: Job, kind: str) -> list[str]:
    """Return the mpirun command. Binding is off: a rank bound to one core would share it with its threads."""
    command = ["mpirun", "-n", str(job.workers)]
    if kind == "openmpi":
        command += ["--oversubscribe", "--bind-to", "none"]
        if os.geteuid() == 0:
            command.append("--allow-run-as-root")
    else:
        command += ["-bind-to", "none"]
    inner = job.foreign_command
    if kind == "mpich" and job.script:
        # Hydra ends the other ranks after a signal, not after an exit code: turn one into the other.
        inner = ["sh", "-c", '"$@" || kill -9 $$', "sh", *inner]
    return [*command, *job.extra, *inner]


class Chatter:
    """Understands what mpirun says at the end: which rank went first, and how."""

    def __init__(self) -> None:
        self.exits: dict[int, int] = {}
        self._rank: int | None = None

    def __call__(self, line: str) -> bool:
        """Take a line in; True if it is part of mpirun's own farewell."""
        if (match := OPEN_MPI_ENDED.search(line)) is not None:
            self.exits.setdefault(int(match[1]), -int(match[2]))
            return True
        if (match := OPEN_MPI_EXIT.match(line)) is not None:
            self._rank = int(match[1])
            return True
        if (match := OPEN_MPI_CODE.match(line)) is not None and self._rank is not None:
            self.exits.setdefault(self._rank, int(match[1]))
            return True
        return False
