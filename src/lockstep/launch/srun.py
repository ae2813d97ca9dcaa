"""`srun`: Slurm starts the ranks, inside an allocation or in a new one."""

from __future__ import annotations

import os
import re
import shutil

from lockstep.launch.base import Job, Launcher, Outcome, threads_for
from lockstep.launch.command import clean_environment, run_command
from lockstep.registry import LauncherDescription

ENDED = re.compile(
    r"srun: error: (\S+): tasks? ([\d,\-]+): (Exited with exit code (\d+)|Killed|Terminated|Aborted.*|Segmentation.*)"
)
SIGNALS = {"Killed": -9, "Terminated": -15, "Aborted": -6, "Segmentation": -11}
LAUNCHER = LauncherDescription(
    name="srun",
    help="Slurm, inside an allocation or in a new one",
    implementation="lockstep.launch.srun:Srun",
    unavailable=lambda: None if shutil.which("srun") else "srun is not installed: launcher srun needs a Slurm cluster",
)


class Srun(Launcher):
    """Ranks under Slurm, which decides where they run."""

    def start(self, job: Job) -> Outcome:
        """Start a step and wait for it."""
        exits: dict[int, int] = {}
        hosts: dict[int, str] = {}
        code = run_command(
            arguments(job),
            clean_environment({"PYTHONUNBUFFERED": "1", **threads_for(job), **job.variables}),
            lambda line: read_line(line, exits, hosts),
        )
        return Outcome(min(code, 255) if code >= 0 else 1, exits, hosts)


def arguments(job: Job) -> list[str]:
    """Return the srun command: one failed task ends all.

    It has no `--unbuffered`, which gives a task a terminal of 80 columns, whatever its output goes to.
    """
    command = ["srun", f"--ntasks={job.workers}", "--kill-on-bad-exit=1", "--wait=60"]
    if job.nodes is not None:
        command.append(f"--nodes={job.nodes}")
    if "SLURM_STEP_ID" in os.environ:
        # Inside a step, such as the shell of `srun --pty` or a notebook's server: it holds CPUs of the allocation, and
        # a step that may not share them would wait for ever.
        command.append("--overlap")
    cpus = cpus_per_task(job.threads, os.environ.get("SLURM_CPUS_PER_TASK", ""))
    if cpus is not None:
        command.append(f"--cpus-per-task={cpus}")  # since 22.05 a step does not inherit it
    return [*command, *job.extra, *job.foreign_command]


def cpus_per_task(threads: int | None, allocated: str) -> int | None:
    """Return the CPUs to ask for each rank: those of the allocation, and enough for its threads; None: Slurm's default.

    A rank that computes with fewer threads uses the rest of its CPUs for loading data.
    """
    cpus = max(threads or 0, int(allocated) if re.fullmatch(r"[0-9]{1,9}", allocated) else 0)
    return cpus or None


def read_line(line: str, exits: dict[int, int], hosts: dict[int, str]) -> bool:
    """Add the exit codes and hosts that a line reports, in order; return whether the line is from Slurm itself."""
    if (match := ENDED.match(line)) is not None:
        code = int(match[4]) if match[4] else SIGNALS.get(match[3].split()[0].rstrip(","), -6)
        for rank in _ranks(match[2]):
            exits.setdefault(rank, code)
            hosts.setdefault(rank, match[1])
        return True
    return line.startswith(("srun: Terminating StepId", "srun: Job step aborted", "slurmstepd: error: *** STEP"))


def _ranks(text: str) -> list[int]:
    ranks: list[int] = []
    for part in text.split(","):
        low, _, high = part.partition("-")
        ranks += range(int(low), int(high or low) + 1)
    return ranks
