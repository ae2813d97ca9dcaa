"""`mpirun`: Open MPI or MPICH, whichever is on the PATH, starts the ranks."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

from lockstep.launch.base import Job, Launcher, Outcome, rendezvous_file, threads_for
from lockstep.launch.command import clean_environment, run_command
from lockstep.registry import LauncherDescription
from lockstep.train.schema.rank_jsonl import PATTERN, header_of, read_rank

# How Open MPI reports that a rank ended by a signal, or with an exit code (two lines).
OPEN_MPI_SIGNAL = re.compile(r"mpi\S+ noticed that process rank (\d+) .* exited on signal (\d+)")
OPEN_MPI_RANK = re.compile(r"\s*Process name: \[\[\d+,\d+\],(\d+)\]")
OPEN_MPI_CODE = re.compile(r"\s*Exit code:\s+(\d+)")
# How MPICH reports it: with the process, not the rank.
MPICH_PROCESS = re.compile(r"=\s+PID (\d+) RUNNING AT")
MPICH_CODE = re.compile(r"=\s+EXIT CODE: (\d+)")
OWN_LINES = re.compile(
    r"-{60,}$|={60,}$|=\s|Primary job\s+terminated|a non-zero exit code\. Per user|mpi\S+ (detected|noticed) that"
    r"|the job to be terminated\.|YOUR APPLICATION TERMINATED|This typically refers|Please see the FAQ page"
)
LAUNCHER = LauncherDescription(
    name="mpirun",
    help="Open MPI or MPICH, whichever is on the PATH",
    implementation="lockstep.launch.mpirun:Mpirun",
    unavailable=lambda: None if shutil.which("mpirun") else "mpirun is not installed: install Open MPI or MPICH",
    local_rendezvous=True,
)


class Mpirun(Launcher):
    """Ranks under MPI's process manager; MPI itself is not used."""

    def start(self, job: Job) -> Outcome:
        """Start the ranks and wait."""
        output = MpirunOutput()
        with rendezvous_file() as rendezvous:
            env = clean_environment({"LOCKSTEP_RENDEZVOUS": rendezvous, **threads_for(job), **job.variables})
            code = run_command(arguments(job, implementation()), env, output)
        return Outcome(min(code, 255) if code >= 0 else 1, output.by_rank(job))


def implementation() -> str:
    """Return `openmpi` or `mpich`: their flags differ."""
    version = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, timeout=20, check=False)
    return "openmpi" if "Open MPI" in version.stdout or "OpenRTE" in version.stdout else "mpich"


def arguments(job: Job, flavour: str) -> list[str]:
    """Return the mpirun command. Binding is off: the threads of a rank would share the one core it is bound to."""
    command = ["mpirun", "-n", str(job.workers)]
    if flavour == "openmpi":
        command += ["--oversubscribe", "--bind-to", "none"]
        command += [part for name in threads_for(job) for part in ("-x", name)]  # ranks of other hosts get it too
        if os.geteuid() == 0:
            command.append("--allow-run-as-root")
    else:
        command += ["-bind-to", "none"]
    inner = job.foreign_command
    if flavour == "mpich" and job.script:
        # Hydra ends the other ranks after a signal, but not after an exit code: make a signal of an exit code.
        inner = ["sh", "-c", '"$@" || kill -9 $$', "sh", *inner]
    return [*command, *job.extra, *inner]


class MpirunOutput:
    """Reads the lines that mpirun prints at the end: which rank ended first, and how."""

    def __init__(self) -> None:
        self.ranks: dict[int, int] = {}
        """Exit codes by rank, from Open MPI."""
        self.processes: dict[int, int] = {}
        """Exit codes by process, from MPICH, which reports signals: our ranks end by one, see `process_exit`."""
        self._subject = -1

    def __call__(self, line: str) -> bool:
        """Read a line; return whether it is from mpirun itself."""
        if (match := OPEN_MPI_SIGNAL.search(line)) is not None:
            self.ranks.setdefault(int(match[1]), -int(match[2]))
        elif (match := OPEN_MPI_RANK.match(line) or MPICH_PROCESS.match(line)) is not None:
            self._subject = int(match[1])
        elif (match := OPEN_MPI_CODE.match(line)) is not None:
            self.ranks.setdefault(self._subject, int(match[1]))
        elif (match := MPICH_CODE.match(line)) is not None:
            self.processes.setdefault(self._subject, -int(match[1]))
        else:
            return OWN_LINES.match(line) is not None
        return True

    def by_rank(self, job: Job) -> dict[int, int]:
        """Return the exit codes by rank; the rank of a process is in the header of its records."""
        if self.processes and job.folder is not None:
            for path in sorted(job.folder.glob(PATTERN)):
                header = header_of(read_rank(path))
                if header is not None and header.pid in self.processes:
                    self.ranks.setdefault(header.rank, self.processes[header.pid])
        return self.ranks
