"""Calls of Slurm's own commands, any of which may be absent."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from lockstep.errors import BadInput, LockstepError
from lockstep.world.resources import job_number

SECONDS = 60.0
"""After which a command of Slurm does not answer: its controller is away."""
INHERITED = re.compile(
    r"(SLURM_(?!CONF$)|SBATCH_|SRUN_|PMI_|OMPI_).*|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_(ADDR|PORT)"
)
"""Variables of a job that would be mistaken for those of the next; where Slurm's configuration is, is none of them."""


class SlurmFailed(LockstepError):
    """A command of Slurm did not do what was asked; the text has its own words."""


def call(command: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    """Run a command of Slurm and return what it prints; refuse where it is not installed."""
    program = shutil.which(command[0])
    if program is None:
        raise BadInput(f"{command[0]} is not installed: this needs a Slurm cluster, or its login node")
    try:
        done = subprocess.run(
            [program, *command[1:]],
            env=env,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SlurmFailed(f"{command[0]} does not answer after {SECONDS:.0f} s: is the controller up?") from None
    if done.returncode:
        words = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
        raise SlurmFailed(f"{command[0]} refused: {words:.500}")
    return done.stdout


def submit(batch_file: Path, *options: str, env: Mapping[str, str] | None = None) -> str:
    """Submit a batch file; return the job's number."""
    printed = call(["sbatch", "--parsable", *options, str(batch_file)], env=outside() if env is None else env)
    number = printed.strip().partition(";")[0]
    if not re.fullmatch(r"[0-9]+", number):
        raise SlurmFailed(f"sbatch printed {printed.strip()!r:.200}, expected the number of a job")
    return number


def outside() -> dict[str, str]:
    """Return the environment without the variables of the job that this process is in."""
    return {name: value for name, value in os.environ.items() if not INHERITED.fullmatch(name)}


def refuse_inside_a_job() -> None:
    """Refuse to submit a job from a job: it would inherit what the first was given."""
    if job := job_number(os.environ):
        raise BadInput(
            f"this is inside job {job}, and a job that is submitted here would inherit its variables: submit on a "
            "login node; --dry-run shows the batch file anywhere"
        )
