"""Whether a job is started again, decided from its run folder, and how."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lockstep.cluster.batch_file import RUN_VARIABLE
from lockstep.cluster.slurm_commands import SlurmFailed, call, outside, submit
from lockstep.errors import BadInput
from lockstep.registry import describe
from lockstep.train.continuing import complete
from lockstep.train.failure import first_cause
from lockstep.train.resume import attempts
from lockstep.train.schema.run_json import NAME, read_setup
from lockstep.train.stop_signal import stopped_after
from lockstep.world.resources import job_number


@dataclass(frozen=True)
class AttemptEnd:
    """How one attempt of a run ended."""

    kind: Literal["done", "stopped", "failed"]
    step: int
    """The step that failed, or the steps that were done."""
    why: str = ""
    """Of a failure, in one line."""


@dataclass(frozen=True)
class Decision:
    """Whether to start again, and why (not)."""

    again: bool
    why: str


def decide(ends: Sequence[AttemptEnd], limit: int) -> Decision:
    """Decide from how all attempts ended, the last of them last."""
    last, before = ends[-1], ends[:-1]
    if last.kind == "done":
        return Decision(False, "the run is complete")
    what = f"stopped after step {last.step - 1}" if last.kind == "stopped" else f"failed at step {last.step}"
    earlier = [end for end in before if end.kind == "failed"]
    if last.kind == "failed" and earlier and earlier[-1].step == last.step:
        return Decision(False, f"it {what}, as the attempt before: another would fail there too. {last.why}".strip())
    if len(before) >= limit:
        return Decision(False, f"it {what}, and was started again {len(before)} times already, the limit")
    return Decision(True, f"it {what}; start {len(before) + 2} of at most {limit + 1}")


def read_ends(folder: Path) -> list[AttemptEnd]:
    """Return how the attempts of a run ended, the last of them last; refuse a folder in which nothing was begun."""
    if not (folder / NAME).is_file():
        raise BadInput(f"{folder} holds no run: nothing was begun, and starting again would not change that")
    return [_end(attempt) for attempt in [*attempts(folder), folder]]


def _end(folder: Path) -> AttemptEnd:
    if complete(folder):
        return AttemptEnd("done", 0)
    if (steps := stopped_after(folder)) is not None:
        return AttemptEnd("stopped", steps)
    spec = read_setup(folder).spec
    cause = first_cause(folder, describe(spec.strategy).processes(spec.workers), {})
    return AttemptEnd("failed", cause.step, f"rank {cause.rank} on {cause.host}: {cause.text.splitlines()[-1]:.200}")


def start_again(run: Path, *, batch_file: Path | None, dependent: bool) -> str:
    """Requeue the job that this process is in, or submit a dependent one; return what was done.

    Inside a container there may be no `scontrol`: then a dependent job is submitted, if there is an `sbatch`.
    """
    job = job_number(os.environ)
    if not job:
        raise BadInput("this is not inside a Slurm job: requeue is for the end of a batch file")
    if not dependent and shutil.which("scontrol") is not None:
        call(["scontrol", "requeue", job])
        return f"job {job} is requeued"
    if batch_file is None:
        raise SlurmFailed("scontrol is not installed here, and without --batch-file no dependent job can be submitted")
    by_hand = f"{RUN_VARIABLE}={shlex.quote(str(run))} sbatch {shlex.quote(str(batch_file))}"
    if shutil.which("sbatch") is None:
        raise SlurmFailed(f"neither scontrol nor sbatch is installed here: go on from a login node with: {by_hand}")
    number = submit(batch_file, f"--dependency=afterany:{job}", env={**outside(), RUN_VARIABLE: str(run)})
    return f"job {number} is submitted, and begins when job {job} has ended"
