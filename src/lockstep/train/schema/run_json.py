"""run.json: what was asked for, as every process of the run reads it."""

from __future__ import annotations

from pathlib import Path

from lockstep.train.schema.reading import read_document
from lockstep.train.schema.refusal import damaged, shown
from lockstep.train.schema.scalars import MOST_WORKERS, Count, Document, Positive, Record, Seed, Time, Workers
from lockstep.train.spec import RunSpec

NAME = "run.json"


class RecipeFacts(Record, frozen=True, kw_only=True):
    """What is trained."""

    name: str
    """Of the recipe."""
    global_batch: Positive
    """Samples per step over all workers."""
    epochs: Count
    """Passes over the data."""
    seed: Seed
    """Of weights, order and dropout."""
    source: str
    """SHA-256 of the recipe's file; empty for a built-in recipe."""


class StepCount(Record, frozen=True, kw_only=True):
    """For how long."""

    samples: Count | None
    """Of the training data; null for a stream without a length."""
    lanes: Positive
    """Slices of the global batch."""
    epoch_steps: Positive | None
    """Steps of one pass over the data; null for a stream without a length."""
    steps: Positive
    """Steps of the whole run."""


class Resumption(Record, frozen=True, kw_only=True):
    """A checkpoint at which the run was resumed."""

    step: Count
    """Steps done before it."""
    written_by: str
    """The strategy and the number of workers that wrote it."""
    time: Time
    """When the run was resumed, in seconds since the epoch."""
    warnings: tuple[str, ...] = ()
    """What may make other bits than those of an uninterrupted run."""


class Setup(Document, frozen=True, kw_only=True):
    """Everything that was known before the first step."""

    spec: RunSpec
    """The settings of the run."""
    recipe: RecipeFacts
    """What is trained."""
    plan: StepCount
    """For how long."""
    versions: dict[str, str | None]
    """Of what the bits and the times depend on: lockstep, torch, numpy, python, machine, system, implementation."""
    host: str
    """Where the run was started."""
    cpu: str
    """The processor of that host."""
    cpus: Workers
    """Processors that the run may use there."""
    created: Time
    """When this file was written, in seconds since the epoch."""
    resumed: tuple[Resumption, ...] = ()
    """The checkpoints at which the run was resumed."""


def read_setup(folder: Path) -> Setup:
    """Read run.json, or refuse it."""
    path = folder / NAME
    setup: Setup = read_document(path, Setup)
    if wrong := wrong_count(setup.spec):
        raise damaged(str(path), f"spec, {wrong}")
    return setup


def wrong_count(spec: RunSpec) -> str:
    """Say which number a RunSpec's types allow and no machine has; empty if there is none."""
    for name, count in (("workers", spec.workers), ("threads", spec.threads)):
        if count is not None and not 1 <= count <= MOST_WORKERS:
            return f"{name} is {shown(count)}, expected a whole number from 1 to {MOST_WORKERS}"
    for name, value in vars(spec).items():
        if type(value) is int and not -(2**63) <= value < 2**63:
            return f"{name} is {shown(value)}, expected a whole number of at most 63 bits"
    return ""
