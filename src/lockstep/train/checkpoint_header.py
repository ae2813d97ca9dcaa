"""What a checkpoint says of itself, and what of it must be the same here for the same bits."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from lockstep.errors import BadInput

SCHEMA = 1
BITS_DEPEND_ON = ("lockstep", "torch", "numpy", "python", "machine")
"""Versions that bits, and times, may depend on."""


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """What the bits depend on, beside the code and the data."""

    recipe: str = ""
    """Its name; empty for a loop of one's own."""
    seed: int
    """Of weights, order and dropout."""
    lanes: int
    """Slices of the global batch."""
    global_batch: int | None = None
    """Samples per step over all workers; None if no batch was asked for yet."""
    threads: int
    """Threads per worker."""
    clip: float | None = None
    """The largest norm of a gradient."""
    sync_batchnorm: bool = False
    """Whether BatchNorm takes its statistics over all workers."""
    exact: bool = True
    """Whether lanes are added in the tree."""


@dataclass(frozen=True, kw_only=True)
class Writer:
    """Who wrote it; a checkpoint loads in any other."""

    strategy: str
    """As typed."""
    workers: int
    """How many."""
    device: str
    """What they computed on: the kind."""
    versions: dict[str, Any]
    """Of what computes."""
    time: float
    """When, in seconds since the epoch."""


@dataclass(frozen=True, kw_only=True)
class Header:
    """The header of a checkpoint, without the table of tensors."""

    step: int
    """How many steps were done."""
    epoch: int
    """In which pass over the data it stands."""
    epoch_step: int | None
    """How many steps of that pass were done; None if the batches were not the trainer's."""
    arithmetic: Arithmetic
    """What must be the same."""
    writer: Writer
    """What may be another."""
    settings: dict[str, Any]
    """Of the optimizer and the schedule."""

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {"schema": SCHEMA, **asdict(self)}


def read_header(content: dict[str, Any], where: str) -> Header:
    """Return a file's header as a value; refuse one of another schema."""
    if content.get("schema") != SCHEMA:
        raise BadInput(
            f"{where} has schema {content.get('schema')!r}, and this version of Lockstep reads {SCHEMA}: "
            "go on with the version that wrote it"
        )
    try:
        known = {field.name: content[field.name] for field in fields(Header)}
        header = Header(
            **{**known, "arithmetic": Arithmetic(**known["arithmetic"]), "writer": Writer(**known["writer"])}
        )
    except (KeyError, TypeError) as error:
        raise BadInput(f"{where} has a header without {error}: it was written by another version") from error
    numbers = (header.step, header.epoch, header.epoch_step or 0, header.arithmetic.lanes, header.arithmetic.threads)
    if any(type(number) is not int or number < 0 for number in numbers):
        raise BadInput(f"{where} has a header with {numbers} for step, epoch, step in it, lanes and threads")
    return header


def refuse_other(saved: Arithmetic, here: Arithmetic, where: str) -> None:
    """Refuse to go on with another arithmetic: name both sides and what to do; what a side leaves open is skipped."""
    options = {"seed": "--seed {0}", "lanes": "--lanes {0}", "global_batch": "--global-batch {0}"}
    options |= {"threads": "--threads {0}, or join(threads={0})"}
    for field in fields(Arithmetic):
        theirs, ours = getattr(saved, field.name), getattr(here, field.name)
        unknown = (field.name == "recipe" and "" in (theirs, ours)) or (
            field.name == "global_batch" and None in (theirs, ours)
        )
        if theirs == ours or unknown:
            continue
        what = field.name.replace("_", " ")
        advice = options.get(field.name, "{what} as it was").format(theirs, what=what)
        why = "; threads per worker are part of the arithmetic" if field.name == "threads" else ""
        raise BadInput(f"{where} was written with {what} {theirs}, and here it is {ours}{why}: use {advice}")


def differences(saved: Writer, here: Writer, arithmetic: Arithmetic) -> list[str]:
    """Return what may make other bits than an unbroken run's, a sentence each; none of it is refused."""
    found = [
        f"{name} {saved.versions.get(name)} wrote the checkpoint, here is {here.versions.get(name)}: bits may differ"
        for name in BITS_DEPEND_ON
        if saved.versions.get(name) != here.versions.get(name)
    ]
    if saved.device != here.device:
        found.append(f"{saved.device} computed the checkpoint, and here is {here.device}: bits may differ")
    coupled = {"SyncBatchNorm": arithmetic.sync_batchnorm, "an inexact sum": not arithmetic.exact}
    if saved.workers != here.workers:
        found += [
            f"{what} ran on {saved.workers} workers, and here are {here.workers}: the bits depend on that"
            for what, there in coupled.items()
            if there
        ]
    return found
