"""The batch file as text: a pure function of what is asked for, the site and the command."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep.cluster.profiles import Profile
from lockstep.cluster.request import Request

SIGNAL = "USR2"
"""Not USR1, which NCCL uses."""
RUN_VARIABLE = "LOCKSTEP_RUN"
"""Tells a dependent job the run folder of the job before it."""
WIDTH = 118


@dataclass(frozen=True, kw_only=True)
class Requeue:
    """What happens when the time is over, or something fails."""

    limit: int = 3
    """How often; 0: never."""
    notice: int = 90
    """Seconds before the time limit at which Slurm sends the signal."""
    dependent: bool = False
    """Whether a dependent job is submitted, in place of a requeue."""


@dataclass(frozen=True, kw_only=True)
class BatchFile:
    """Everything that a batch file is made of."""

    request: Request
    """What is asked for."""
    recipe: str
    """What is trained: an absolute path, or a built-in name."""
    arguments: tuple[str, ...]
    """More arguments of `lockstep run`."""
    python: str
    """The interpreter of the environment in which Lockstep is."""
    path: Path
    """Where the file is written to."""
    runs: Path
    """The folder of run folders."""
    out: Path | None = None
    """The run folder, where it is given."""
    profile: Profile | None = None
    """The site."""
    modules: tuple[str, ...] = ()
    """More modules to load."""
    requeue: Requeue = Requeue()
    """What happens at the end."""
    typed: str = ""
    """The command that made it."""

    def text(self) -> str:
        """Return the file."""
        parts = [
            "#!/bin/bash",
            *self._heading(),
            "",
            *sorted(f"#SBATCH {line}" for line in self._directives()),
            "",
            "set -eo pipefail",
            *self._modules(),
            *self._environment(),
            *self._run_folder(),
            *self._srun(),
            *self._ending(),
        ]
        return "\n".join(parts) + "\n"

    def _heading(self) -> list[str]:
        asked = self.request
        what = Path(self.recipe.partition(":")[0]).name
        workers = f"{asked.workers} worker{'' if asked.workers == 1 else 's'}"
        nodes = f"{asked.nodes} node{'' if asked.nodes == 1 else 's'}"
        site = f", for {self.profile.site}, partition {asked.partition}" if self.profile else ""
        lines = [f"# Trains {what} on {workers} of {nodes}{site}."]
        lines += [f"# Written by: {self.typed}"] if self.typed else []
        lines += [
            f"# Submit it:  sbatch {shlex.quote(str(self.path))}",
            "# Look at it: lockstep jobs, lockstep stats JOBID",
        ]
        notes = (*self.profile.notes, *self.profile.partition(asked.partition)[1].notes) if self.profile else ()
        if notes:
            lines += ["#", "# Notes of the site:", *(f"# - {note}" for note in notes)]
        return lines

    def _directives(self) -> list[str]:
        asked = self.request
        log = f"{asked.name}-%A_%a.log" if asked.array else f"{asked.name}-%j.log"
        lines = [
            f"--job-name={asked.name}",
            f"--nodes={asked.nodes}",
            f"--ntasks-per-node={asked.tasks}",
            f"--output={log}",
            "--open-mode=append",  # a requeued job would truncate its log
        ]
        for option, value in (
            ("account", asked.account),
            ("array", asked.array),
            ("cpus-per-task", asked.cpus_per_task),
            ("mem", asked.memory_mb),
            ("mem-per-cpu", asked.memory_per_cpu_mb),
            ("partition", asked.partition),
            ("time", asked.time),
        ):
            lines += [f"--{option}={value}"] if value is not None else []
        if asked.gpus_per_node:
            form = self.profile.gpu_option if self.profile else "--gpus-per-node={type}:{count}"
            form = form if asked.gpu else form.replace("{type}:", "")
            lines.append(form.format(type=asked.gpu, count=asked.gpus_per_node))
        if self.requeue.limit:
            lines.append(f"--signal={SIGNAL}@{self.requeue.notice}")
            lines.append("--no-requeue" if self.requeue.dependent else "--requeue")
        return lines

    def _modules(self) -> list[str]:
        site = self.profile.module_lines(self.request.partition) if self.profile else ()
        lines = [*site, *(f"module load {shlex.quote(name)}" for name in self.modules)]
        return ["", "# Software that the environment was made with.", *lines] if lines else []

    def _environment(self) -> list[str]:
        variables = self.profile.environment if self.profile else {}
        lines = [f"export {name}={shlex.quote(value)}" for name, value in sorted(variables.items())]
        return ["", "# Environment of every task.", *lines] if lines else []

    def _run_folder(self) -> list[str]:
        number = '"${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"' if self.request.array else '"$SLURM_JOB_ID"'
        if self.out is None:
            folder = f"{shlex.quote(f'{self.runs / self.request.name}-')}{number}"
        else:
            folder = shlex.quote(str(self.out)) + ('-"$SLURM_ARRAY_TASK_ID"' if self.request.array else "")
        return [
            "",
            "# The run folder stays the same when the job is started again: the run goes on from its last checkpoint.",
            f"run={folder}",
            f'run="${{{RUN_VARIABLE}:-$run}}"',
        ]

    def _srun(self) -> list[str]:
        asked = self.request
        # srun --unbuffered would give a task a terminal of 80 columns: colours and cut lines in the log
        flags = ["--kill-on-bad-exit=1", "--wait=60"]
        if asked.cpus_per_task is not None:
            flags.insert(0, f"--cpus-per-task={asked.cpus_per_task}")  # since 22.05 a step does not inherit it
        words = [self.python, "-u", "-m", "lockstep", "run", self.recipe]
        more = list(self.arguments)
        seeded = any(one == "--seed" or one.startswith("--seed=") for one in more)
        seed = ['--seed "$SLURM_ARRAY_TASK_ID"'] if asked.array and not seeded else []
        lines = [
            f"srun {' '.join(flags)}",
            " ".join(shlex.quote(word) for word in words),
            *_wrapped(more),
            *seed,
            '--out "$run" --continue',
        ]
        array = ", once for each number of the array, which is its seed" if seed else ""
        return [
            "",
            f"# One task is one worker{array}; when one fails, Slurm ends the others.",
            "code=0",
            " \\\n    ".join(lines) + " || code=$?",
        ]

    def _ending(self) -> list[str]:
        if not self.requeue.limit:
            return ["", 'exit "$code"']
        again = shlex.join([self.python, "-m", "lockstep", "requeue"])
        options = f"--limit {self.requeue.limit} --batch-file {shlex.quote(str(self.path))}"
        options += " --dependent" if self.requeue.dependent else ""
        return [
            "",
            f"# {self.requeue.notice} s before the time limit Slurm sends SIG{SIGNAL}: the ranks write a checkpoint,",
            "# and end. Then, and after a failure, the job is started again: not more often than the limit, and not if",
            "# the same step failed twice.",
            'if [ "$code" -ne 0 ]; then',
            f'    {again} "$run" {options} || true',
            "fi",
            'exit "$code"',
        ]


def _wrapped(words: Sequence[str]) -> list[str]:
    """Return words on lines of a bearable length; an option stays with its value."""
    lines: list[str] = []
    for word in (shlex.quote(word) for word in words):
        if lines and len(lines[-1]) + len(word) + 1 < WIDTH - 6 and not (word.startswith("--") and len(lines[-1]) > 70):
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines
