"""`lockstep bench data`: one big tensor, a list of tensors and a Ragged, in spawned ranks and stock loaders."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import psutil
import torch
from torch.utils.data import DistributedSampler

from lockstep.bench.ranks.data.building import building
from lockstep.bench.ranks.data.reading import epochs
from lockstep.bench.ranks.data.sides import BIG, LIST, OURS, SIDES, make
from lockstep.bench.ranks.data.starting import SECONDS, SERVER, SPAWN
from lockstep.bench.ranks.data.training import by_hand, in_lightning
from lockstep.data.loader import Share, batches
from lockstep.errors import BadInput, RunFailed
from lockstep.train.steps import quartiles

WORKERS = (0, 2)
SAMPLER_BYTES = 64
"""What the stock sampler needs for each sample: its permutation, and a Python int in a list."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is measured."""

    items: tuple[int, ...] = (2_000, 10_000, 200_000)
    """How many items; each number is a table row per side."""
    elements: int = 2048
    """Floats per item."""
    ranks: int = 4
    """Processes that hold the data at once."""
    repeats: int = 3
    """How often ranks with the fewest items are started, in turn: there one start varies most. Epochs and
    builds are repeated in proportion, epochs of the fewest items most."""
    sampled: int = 100_000_000
    """Samples of the epoch whose first batch is timed; fewer where memory is too small for the stock sampler."""
    training: bool = True
    """Whether a small training is measured too, by hand and in Lightning, if that is installed."""


@dataclass
class Row:
    """One side at one size."""

    items: int
    side: str
    start: list[float] = field(default_factory=list)
    """Seconds from starting spawned ranks to the last rank's first batch; importing torch is in it."""
    forked: list[float] = field(default_factory=list)
    """The same with ranks from a fork server, which is started too and imports torch once."""
    handed: list[float] = field(default_factory=list)
    """Seconds of that for the data alone: pickling it for all ranks, then in the slowest rank unpickling it and
    reading the first batch. No import is in it, nor that ranks wait for each other's."""
    epoch: dict[int, list[float]] = field(default_factory=dict)
    """Seconds per epoch in a stock loader, by its workers."""
    descriptors: int = 0
    """Open files of a rank."""
    private: int = 0
    """Bytes of a rank alone."""
    shared: int = 0
    """Bytes it has in common with others."""
    copies: float = 0.0
    """What all ranks together hold beyond what they hold without the data, in copies of it."""
    by_hand: float | str | None = None
    """Seconds of a small training in ranks that were started by hand, or why it has none."""
    lightning: float | str | None = None
    """The same in Lightning's spawned ranks."""
    why_not: str = ""
    """What stopped it."""


@dataclass(frozen=True)
class Goal:
    """A ratio that was promised."""

    what: str
    ratio: float
    most: float
    spread: tuple[float, float] | None = None
    """The middle half of the pairs whose median the ratio is."""


@dataclass(frozen=True)
class Found:
    """Everything of one run."""

    rows: list[Row]
    goals: list[Goal]

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"rows": [asdict(row) for row in self.rows], "goals": [asdict(goal) for goal in self.goals]}


def run(options: Options, tell: Callable[[str], None] = lambda _: None) -> Found:
    """Measure all sides in turn; more items first make the list fail, which is a row that says so."""
    if min(options.items) < 100 * options.ranks or options.elements < 1:
        raise BadInput(f"--items: at least {100 * options.ranks} are needed for {options.ranks} ranks")
    rows: list[Row] = []
    goals: list[Goal] = []
    for items in options.items:
        here = {side: Row(items, side) for side in SIDES}
        values = torch.randn(items, options.elements)
        tell(f"{items} items: building")
        built, copied = building(values, options.repeats)
        goals.append(_goal(f"{items} items: building / a plain copy of the bytes", built, copied, 3.0))
        for repeat in range(options.repeats if items == options.items[0] else 1):
            for how in (SPAWN, SERVER):
                for side, row in here.items():
                    if not row.why_not and (repeat == 0 or not (side == BIG or here[LIST].why_not)):
                        tell(f"{items} items: {side} in {options.ranks} ranks by {how}, repeat {repeat + 1}")
                        _start(row, options, how)
        tell(f"{items} items: epochs")
        rounds = (12 if items == options.items[0] else 4) * options.repeats
        _epochs({side: row for side, row in here.items() if not row.why_not}, values, rounds)
        if options.training and items == options.items[0]:
            for side, row in here.items():
                tell(f"{items} items: {side} in a small training, by hand and in Lightning")
                row.by_hand = by_hand(side, items, options.elements)
                row.lightning = in_lightning(side, items, options.elements)
        rows += here.values()
        goals += _goals(here)
    tell("sampling")
    return Found(rows, [*goals, _few_descriptors(rows), _sampling(options.sampled)])


def _start(row: Row, options: Options, how: str) -> None:
    """Start ranks from a program of its own; see [Note: the program's own import]."""
    plan = {"side": row.side, "items": row.items, "elements": options.elements, "ranks": options.ranks, "how": how}
    command = [sys.executable, "-m", "lockstep.bench.ranks.data.starting", json.dumps(plan)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=2 * SECONDS)
    except subprocess.TimeoutExpired:
        row.why_not = f"no end after {2 * SECONDS:.0f} s"
        return
    if done.returncode:
        raise RunFailed(f"the program that starts ranks with a {row.side} failed:\n{done.stderr.strip()}")
    found = json.loads(done.stdout)
    row.why_not = found.get("why_not", "")
    if row.why_not:
        return
    if how == SERVER:
        row.forked.append(found["start"])
        return
    row.start.append(found["start"])
    row.handed.append(found["handed"])
    row.descriptors, row.private, row.shared, row.copies = (
        found[name] for name in ("descriptors", "private", "shared", "copies")
    )


def _epochs(rows: dict[str, Row], values: torch.Tensor, rounds: int) -> None:
    context: Any = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe(duplex=False)
    sides = {side: make(side, values) for side in rows}
    process = context.Process(target=epochs, args=(sides, WORKERS, rounds, theirs))
    process.start()
    theirs.close()
    try:
        found = mine.recv()
    except EOFError:
        raise RunFailed("a process that read epochs ended before it was done; its message stands above") from None
    finally:
        process.join()
    for side, row in rows.items():
        row.epoch = {workers: found[f"{side}/{workers}"] for workers in WORKERS}


def _goals(rows: dict[str, Row]) -> list[Goal]:
    ours, theirs, items = rows[OURS], rows[LIST], rows[OURS].items
    found = [
        _goal(f"{items} items: epoch, {n} loader workers: Ragged / one big tensor", ours.epoch[n], big, 1.05)
        for n, big in rows[BIG].epoch.items()
    ]
    if not theirs.why_not:
        what = f"{items} items: start, {{}}: Ragged / list of tensors"
        found.append(_goal(what.format("spawned ranks"), ours.start, theirs.start, 0.5))
        found.append(_goal(what.format("the data's part of it"), ours.handed, theirs.handed, 0.5))
        found.append(_goal(what.format("ranks from a fork server"), ours.forked, theirs.forked, 0.5))
    return [*found, Goal(f"{items} items: memory of all ranks, in copies of the data", ours.copies, 1.1)]


def _goal(what: str, ours: Sequence[float], theirs: Sequence[float], most: float) -> Goal:
    """Compare neighbours in time, because a busy minute hurts both sides of a pair, and take the median."""
    low, middle, high = quartiles([a / b for a, b in zip(ours, theirs, strict=True)])
    return Goal(what, middle, most, (low, high))


def _few_descriptors(rows: list[Row]) -> Goal:
    counts = [row.descriptors for row in rows if row.side == OURS]
    return Goal("descriptors of a rank: most items / fewest items", max(counts) / min(counts), 1.0)


def _sampling(samples: int) -> Goal:
    """Compare the first batch of a huge epoch: ours, and the indices of the stock sampler."""
    samples = min(samples, psutil.virtual_memory().available // SAMPLER_BYTES)
    numbers = _Numbers(samples)
    share = Share(global_batch=256, lanes=4, workers=4)
    began = time.perf_counter()
    next(batches(numbers, share, epoch=0, prefetch=0))
    ours = time.perf_counter()
    next(iter(DistributedSampler(numbers, 4, 0)))
    theirs = time.perf_counter()
    return Goal(f"first batch of {samples} samples: ours / DistributedSampler", (ours - began) / (theirs - ours), 0.01)


class _Numbers(torch.utils.data.Dataset[Any]):
    """Its own numbers, without holding them."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def gather(self, indices: Any) -> Any:
        """Return the numbers that were asked for."""
        return torch.as_tensor(indices)
