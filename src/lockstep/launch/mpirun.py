"""`mpirun`: Open MPI or MPICH starts the ranks; whichever the PATH says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

from lockstep.launch.base import Job, Launcher, Outcome, meeting_file, threads_for
from lockstep.launch.command import clean_environment, run_command
from lockstep.registry import LauncherDescription
from lockstep.train.schema.rank_jsonl import PATTERN, header_of, read_rank

# How Open MPI tells that a rank ended by a signal, or with an exit code (two lines).
OPEN_MPI_SIGNAL = re.compile(r"mpi\S+ noticed that process rank (\d+) .* exited on signal (\d+)")
OPEN_MPI_RANK = re.compile(r"\s*Process name: \[\[\d+,\d+\],(\d+)\]")
OPEN_MPI_CODE = re.compile(r"\s*Exit code:\s+(\d+)")
# How MPICH tells it: the process, not the rank.
MPICH_PROCESS = re.compile(r"=\s+PID (\d+) RUNNING AT")
MPICH_CODE = re.compile(r"=\s+EXIT CODE: (\d+)")
CHATTER = re.compile(
    r"-{60,}$|={60,}$|=\s|Primary job\s+terminated|a non-zero exit code\. Per user|mpi\S+ (detected|noticed) that"
    r"|the job to be terminated\.|YOUR APPLICATION TERMINATED|This typically refers|Please see the FAQ page"
)
LAUNCHER = LauncherDescription(
    name="mpirun",
    help="Open MPI or MPICH, whichever is on the PATH",
    implementation="lockstep.launch.mpirun:Mpirun",
    unavailable=lambda: None if shutil.which("mpirun") else "mpirun is not installed here: install Open MPI or MPICH",
    meets_here=True,
)


class Mpirun(Launcher):
    """Ranks under MPI's process manager; MPI itself is not used."""

    def start(self, job: Job) -> Outcome:
        """Start the ranks and wait."""
        heard = Chatter()
        with meeting_file() as meeting:
            env = clean_environment({"LOCKSTEP_RENDEZVOUS": meeting, **threads_for(job), **job.variables})
            code = run_command(arguments(job, flavour()), env, heard)
        return Outcome(min(code, 255) if code >= 0 else 1, heard.by_rank(job))


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
        self.ranks: dict[int, int] = {}
        """Exit codes by rank, from Open MPI."""
        self.processes: dict[int, int] = {}
        """Exit codes by process, from MPICH; what it says are signals when the ranks do not exit by themselves."""
        self._subject = -1

    def __call__(self, line: str) -> bool:
        """Take a line in; True if it is part of mpirun's own farewell."""
        if (match := OPEN_MPI_SIGNAL.search(line)) is not None:
            self.ranks.setdefault(int(match[1]), -int(match[2]))
        elif (match := OPEN_MPI_RANK.match(line) or MPICH_PROCESS.match(line)) is not None:
            self._subject = int(match[1])
        elif (match := OPEN_MPI_CODE.match(line)) is not None:
            self.ranks.setdefault(self._subject, int(match[1]))
        elif (match := MPICH_CODE.match(line)) is not None:
            self.processes.setdefault(self._subject, -int(match[1]))
        else:
            return CHATTER.match(line) is not None
        return True

    def by_rank(self, job: Job) -> dict[int, int]:
        """Return the exit codes by rank; a process is looked up in the headers of the run's records."""
        if self.processes and job.folder is not None:
            for path in sorted(job.folder.glob(PATTERN)):
                header = header_of(read_rank(path))
                if header is not None and header.pid in self.processes:
                    self.ranks.setdefault(header.rank, self.processes[header.pid])
        return self.ranks
