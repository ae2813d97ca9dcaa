"""What a checkpoint says of itself, and what of it must be the same here for the same bits."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import msgspec

from lockstep.errors import BadInput, printable
from lockstep.train.best_metric import BestMetric
from lockstep.train.schema.refusal import validation_words
from lockstep.train.schema.scalars import Count, Positive, Seed, Time, Workers

if TYPE_CHECKING:
    from lockstep.settings import Settings

BITS_DEPEND_ON = ("lockstep", "torch", "numpy", "python", "machine")
"""Versions that bits, and times, may depend on."""


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """What the bits depend on, beside the code and the data."""

    recipe: str = ""
    """Its name; empty for a loop of one's own."""
    seed: Seed
    """Of weights, order and dropout."""
    lanes: Positive
    """Slices of the global batch."""
    global_batch: Positive | None = None
    """Samples per step over all workers; None if no batch was asked for yet."""
    threads: Workers
    """Threads per worker."""
    clip: float | None = None
    """The largest norm of a gradient."""
    sync_batchnorm: bool = False
    """Whether BatchNorm takes its statistics over all workers."""
    exact: bool = True
    """Whether lanes are added in the tree."""
    products: str = ""
    """How an accelerator multiplies float32 numbers: `highest`, `high` (TF32) or `medium`; empty on the CPU."""

    @classmethod
    def of(
        cls,
        settings: Settings,
        *,
        recipe: str,
        global_batch: int | None,
        threads: int,
        clip: float | None,
        products: str = "",
    ) -> Arithmetic:
        """Return what the bits of a training depend on; its settings have their lanes and their seed filled in."""
        assert settings.lanes is not None
        assert settings.seed is not None
        return cls(
            recipe=recipe,
            seed=settings.seed,
            lanes=settings.lanes,
            global_batch=global_batch,
            threads=threads,
            clip=clip,
            sync_batchnorm=settings.sync_batchnorm,
            exact=settings.exact,
            products=products,
        )


@dataclass(frozen=True, kw_only=True)
class CheckpointWriter:
    """Who wrote it; a checkpoint loads in any other."""

    strategy: str
    """As typed."""
    workers: Workers
    """How many."""
    device: str
    """What they computed on: the kind."""
    versions: dict[str, str | None]
    """Of what computes."""
    time: Time
    """When, in seconds since the epoch."""


@dataclass(frozen=True, kw_only=True)
class CheckpointHeader:
    """What a checkpoint holds beside tensors."""

    step: Count
    """How many steps were done."""
    epoch: Count
    """In which pass over the data it stands."""
    epoch_step: Count | None
    """How many steps of that pass were done; None if the batches were not the trainer's."""
    arithmetic: Arithmetic
    """What must be the same."""
    writer: CheckpointWriter
    """What may be another."""
    settings: dict[str, Any]
    """Of the optimizer and the schedule."""
    first_settings: dict[str, Any] | None
    """The same as they were before the first step: as the recipe made them."""
    best: BestMetric | None
    """The best evaluation so far, where one is followed."""
    weights: dict[str, str]
    """The plain model's `state_dict`: each of its names, and under which name the tensor is in the file."""

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def read_header(content: dict[str, Any], where: str) -> CheckpointHeader:
    """Return a file's header as a value; refuse what is no header."""
    try:
        return msgspec.convert(content, CheckpointHeader)
    except (msgspec.ValidationError, UnicodeError) as error:
        words = "it has text that is not Unicode"
        if isinstance(error, msgspec.ValidationError):
            words = validation_words(str(error), json.dumps(content).encode())
        raise BadInput(
            f"{where} has a header that cannot be used: {printable(words, 400)}. It was changed, or another version "
            "wrote it: use the version that wrote it"
        ) from None


def refuse_other(saved: Arithmetic, here: Arithmetic, where: str) -> None:
    """Refuse to go on with another arithmetic: name both sides and what to do; what a side leaves open is skipped."""
    options = {"seed": "--seed {0}", "lanes": "--lanes {0}", "global_batch": "--global-batch {0}"}
    options |= {"threads": "--threads {0}, or join(threads={0})"}
    for field in fields(Arithmetic):
        theirs, ours = getattr(saved, field.name), getattr(here, field.name)
        unknown = (field.name == "recipe" and "" in (theirs, ours)) or (
            field.name == "global_batch" and None in (theirs, ours)
        )
        unknown = unknown or (field.name == "products" and "" in (theirs, ours))  # the CPU: differences() says so
        if theirs == ours or unknown:
            continue
        what = field.name.replace("_", " ")
        advice = options.get(field.name, "{what} as it was").format(theirs, what=what)
        why = "; threads per worker are part of the arithmetic" if field.name == "threads" else ""
        raise BadInput(f"{where} was written with {what} {theirs}, and here it is {ours}{why}: use {advice}")


def differences(saved: CheckpointWriter, here: CheckpointWriter, arithmetic: Arithmetic) -> list[str]:
    """Return what may make other bits than an unbroken run's, a sentence each; none of it is refused."""
    sentences = [
        f"{name} {saved.versions.get(name)} wrote the checkpoint, here is {here.versions.get(name)}: bits may differ"
        for name in BITS_DEPEND_ON
        if saved.versions.get(name) != here.versions.get(name)
    ]
    if saved.device != here.device:
        sentences.append(f"{saved.device} computed the checkpoint, and here is {here.device}: bits may differ")
    coupled = {"SyncBatchNorm": arithmetic.sync_batchnorm, "an inexact sum": not arithmetic.exact}
    if saved.workers != here.workers:
        sentences += [
            f"{what} ran on {saved.workers} workers, and here are {here.workers}: the bits depend on that"
            for what, there in coupled.items()
            if there
        ]
    return sentences
