"""What fits, the cheapest way that does, and the command to type (pure).

With `--memory` a worker may have so much. Without it the workers of a host share what is free there: all of them
together must fit, and what they share counts once. A device's memory is always one worker's.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lockstep.byte_sizes import write_bytes
from lockstep.errors import BadInput
from lockstep.fit.lane_facts import LaneFacts
from lockstep.fit.need import Need
from lockstep.fit.predicting import predict
from lockstep.registry import STRATEGIES
from lockstep.report.reproduce import run_command
from lockstep.report.units import plural
from lockstep.train.spec import RunSpec

FASTEST_FIRST = ("single", "ddp", "dp", "sharded", "torch-ddp", "pipeline", "torch-fsdp", "torch-pipeline", "layers")
"""Of as many workers: those that compute without waiting come first."""


@dataclass(frozen=True, kw_only=True)
class Limit:
    """The memory that there is."""

    bytes: int
    """How much."""
    each: bool
    """Whether each worker has so much; else all workers of a host together."""
    told: str
    """Where the number is from."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One way to train, and what it needs."""

    spec: RunSpec
    need: Need | None = None
    """Of the largest worker; None if it cannot be."""
    fits: bool = False
    """Whether there is so much memory."""
    why_not: str = ""
    """Why it cannot be, or does not fit."""


def limit_of(facts: LaneFacts, memory: int | None) -> Limit:
    """Return the memory that there is: what was typed, else what is free here."""
    if memory is not None:
        return Limit(bytes=memory, each=True, told="--memory, of each worker")
    if facts.device == "cpu":
        return Limit(bytes=facts.free, each=False, told="free on this host, for all its workers")
    return Limit(bytes=facts.free, each=True, told=f"free on the device {facts.device}")


def candidates(facts: LaneFacts, spec: RunSpec, workers: Sequence[int], limit: Limit) -> list[Candidate]:
    """Return every strategy on every number of workers that it can have; one worker is what `single` is."""
    return [
        candidate(facts, replace(spec, strategy=description.name, workers=count), limit)
        for description in STRATEGIES.all()
        for count in sorted({description.workers(count) for count in workers})
        if count > 1 or description.most_workers == 1
    ]


def candidate(facts: LaneFacts, spec: RunSpec, limit: Limit) -> Candidate:
    """Return one way with what it needs, or why it cannot be."""
    try:
        need = predict(facts, spec)
    except BadInput as error:
        return Candidate(spec=spec, why_not=str(error))
    needed = need.total if limit.each else need.host
    if needed <= limit.bytes:
        return Candidate(spec=spec, need=need, fits=True)
    return Candidate(spec=spec, need=need, why_not=f"needs {write_bytes(needed)}")


def cheapest(rows: Sequence[Candidate]) -> Candidate | None:
    """Return the way that fits with the fewest workers, and of these the fastest strategy; None if nothing fits.

    A strategy that does not keep the bits is chosen only if none that does fits.
    """
    fitting = [row for row in rows if row.fits]

    def price(row: Candidate) -> tuple[bool, int, int]:
        name = row.spec.strategy
        place = FASTEST_FIRST.index(name) if name in FASTEST_FIRST else len(FASTEST_FIRST)
        return not STRATEGIES.get(name).exact, row.spec.workers, place

    return min(fitting, key=price, default=None)


def command_of(row: Candidate, typed: Collection[str], lanes: int, folder: Path) -> str:
    """Return the command that trains so, as it is typed in `folder`: with the options that were typed, and lanes."""
    return run_command(replace(row.spec, lanes=lanes), ["strategy", "workers", "lanes", *typed], folder)


def advice(rows: Sequence[Candidate], facts: LaneFacts, limit: Limit) -> str:
    """Say what to try where nothing fits: the way that needs the least, and smaller lanes if there can be some."""
    needs = [(row.need.total if limit.each else row.need.host, row) for row in rows if row.need is not None]
    if not needs:
        return "no strategy can train this recipe so, for the reasons above"
    least, row = min(needs, key=lambda pair: pair[0])
    text = f"nothing fits in {write_bytes(limit.bytes)}: {row.spec.strategy} on "
    text += f"{plural(row.spec.workers, 'worker')} needs the least, {write_bytes(least)}"
    more = next((n for n in range(facts.lanes + 1, facts.global_batch + 1) if facts.global_batch % n == 0), None)
    tries = [f"--lanes {more}, with fewer samples in each"] if more else []
    return f"{text}. Try {' or '.join([*tries, 'more --workers', 'bfloat16, or activation checkpoints in the model'])}"
