"""`mpirun`: Open MPI or MPICH, whichever is on the PATH, starts the ranks."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from lockstep.launch.base import Job, Launcher, Outcome, rendezvous_file, threads_for
from lockstep.launch.command import clean_environment, run_command
from lockstep.registry import LauncherDescription

# An mpirun names the first death that it sees, which may be that of a rank that it ended itself because another died
# before, and MPICH names a process, not a rank. So the guard around a rank says how it ended, before mpirun can know.
GUARD = Path(__file__).with_name("rank_guard.py")
RANK_ENDED = re.compile(r"lockstep: rank (\d+) on (\S+) ended with (-?\d+)$")
OWN_LINES = re.compile(
    r"-{60,}$|={60,}$|=\s|Primary job\s+terminated|a non-zero exit code\. Per user|mpi\S+ (detected|noticed) that"
    r"|the job to be terminated\.|\s*Process name: \[\[|\s*Exit code:\s"
    r"|YOUR APPLICATION TERMINATED|This typically refers|Please see the FAQ page"
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
        return Outcome(min(code, 255) if code >= 0 else 1, output.exits, output.hosts)


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
    return [*command, *job.extra, sys.executable, "-S", str(GUARD), flavour, *job.foreign_command]


class MpirunOutput:
    """Reads what the guards around the ranks say: which rank ended first, how, and where."""

    def __init__(self) -> None:
        self.exits: dict[int, int] = {}
        """Exit codes by rank, the first failure first."""
        self.hosts: dict[int, str] = {}
        """Where these ranks ran."""

    def __call__(self, line: str) -> bool:
        """Read a line; return whether it is mpirun's or ours, and not for the user."""
        match = RANK_ENDED.search(line)
        if match is None:
            return OWN_LINES.match(line) is not None
        self.exits[int(match[1])] = int(match[3])
        self.hosts[int(match[1])] = match[2]
        return True
