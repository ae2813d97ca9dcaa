"""`lockstep bench syncbn`: SyncBatchNorm beside a version written by hand, and local BatchNorm as the limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.bench.contract import (
    Benchmark,
    BenchOption,
    BenchSettings,
    Cell,
    Figure,
    Measurements,
    Quantity,
    Side,
    Table,
    TableColumn,
    Tell,
    Unit,
    at_most,
    figure,
    repeats,
)
from lockstep.bench.ranks.processes import run_ranks
from lockstep.errors import BadInput

WORKERS = 2
GRID = tuple(f"{batch}x{width}" for batch in (32, 64) for width in (128, 256, 512, 1024))
IMAGES = ("16x32x16x16", "16x64x32x32", "32x256x8x8")
WIDEST = "64x1024"
FLOAT_BYTES, SPARE_BYTES = 4, 2048
OURS, BY_HAND, LOCAL = "ours", "by hand", "local"
QUIET = {"KINETO_LOG_LEVEL": "6", "TORCH_CPP_LOG_LEVEL": "ERROR"}
"""Memory is read with torch's profiler, which logs each start and stop at its own highest level (5), and warns of every
block that was allocated before it began: here that is how it is meant. Errors of torch still appear."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A forward and its backward of one way on one shape, on every worker."""

    who: str
    """`local`, `by hand`, `torch` or `ours`."""
    backend: str
    """What the ranks talk through; for `local`, the device."""
    seconds: Quantity
    """On the slowest rank: the median and the quartiles."""
    bytes: int
    """The most that a step holds at once besides its input, its parameters and what is kept between steps;
    the gradients of the parameters are not counted."""
    collectives: int
    """Exchanges with the other ranks."""
    sent: int
    """Bytes that a rank hands over to them."""

    @property
    def way(self) -> str:
        """As a heading."""
        return f"{self.who}, {self.backend}"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """All ways of one shape."""

    name: str
    """Of the input on each worker, for example `32x128`."""
    runs: int
    """How many steps were timed."""
    steps: tuple[Step, ...]
    """In the order in which they took turns."""

    def step(self, who: str, backend: str) -> Step | None:
        """Return one way, if it could run here."""
        return next((step for step in self.steps if (step.who, step.backend) == (who, backend)), None)

    @property
    def activation(self) -> int:
        """Bytes of the input."""
        size = FLOAT_BYTES
        for length in lengths(self.name):
            size *= length
        return size


def run(settings: BenchSettings, tell: Tell) -> Measurements:
    """Measure every way of every shape in one interleaved run."""
    names = settings[SHAPES]
    tell(f"{WORKERS} workers: start")
    shapes = [{"shape": lengths(name), "steps": steps_timed(lengths(name), settings[RUNS])} for name in names]
    plan = {"shapes": shapes, "rounds": settings[REPEATS]}
    measured = run_ranks("lockstep.bench.ranks.syncbn_rank", WORKERS, plan, environment=QUIET, tell=tell)
    ran = [read(name, entry) for name, entry in zip(names, measured, strict=True)]
    return Measurements(tables=(times_table(ran), needs_table(ran)), figures=tuple(figures(ran)))


def check(settings: BenchSettings) -> None:
    """Refuse more turns than there are steps."""
    least = min(steps_timed(lengths(name), settings[RUNS]) for name in settings[SHAPES])
    if settings[REPEATS] > least:
        raise BadInput(f"{REPEATS.flag} {settings[REPEATS]}: expected at most {least}, the steps of the largest input")


def steps_timed(shape: Sequence[int], runs: int) -> int:
    """Return how many steps of a shape are timed: fewer of images, which take longer."""
    return runs if len(shape) == 2 else max(20, runs // 10)


def lengths(name: str) -> list[int]:
    """Return a shape as numbers."""
    return list(map(int, name.split("x")))


def read(name: str, entry: dict[str, Any]) -> Shape:
    """Return what the ranks measured of one shape."""
    gradients = 2 * lengths(name)[1] * FLOAT_BYTES
    steps = [
        Step(
            who=way["who"],
            backend=way["backend"],
            seconds=Quantity(value=way["seconds"], low=way["quartiles"][0], high=way["quartiles"][1]),
            bytes=way["bytes"] - gradients,
            collectives=way["collectives"],
            sent=way["sent"],
        )
        for way in entry["ways"]
    ]
    return Shape(name=name, runs=entry["runs"], steps=tuple(steps))


def figures(shapes: Sequence[Shape]) -> list[Figure]:
    """Return the ratios over all shapes, or those they speak of: the worst counts."""
    widest = [shape for shape in shapes if shape.name == WIDEST]
    goals = [
        ("time, ours on shm / by hand on gloo", shapes, (OURS, "shm"), (BY_HAND, "gloo"), Unit.SECONDS, 0.25),
        ("time, ours / by hand, both on gloo", shapes, (OURS, "gloo"), (BY_HAND, "gloo"), Unit.SECONDS, 0.7),
        ("time, ours / by hand, both on shm", shapes, (OURS, "shm"), (BY_HAND, "shm"), Unit.SECONDS, 0.7),
        ("time at 64 x 1024, ours on shm / local", widest, (OURS, "shm"), (LOCAL, "cpu"), Unit.SECONDS, 2.5),
        ("bytes, ours / by hand", shapes, (OURS, "gloo"), (BY_HAND, "gloo"), Unit.BYTES, 0.45),
    ]
    judged = []
    for what, among, ours, theirs, unit, goal in goals:
        pairs = [(shape.step(*ours), shape.step(*theirs)) for shape in among]
        sides = [(_side(mine, unit), _side(other, unit)) for mine, other in pairs if mine and other]
        judged += _worst(what, sides, goal)
    spare = Side(name="allowed", unit=Unit.BYTES, measured=Quantity(value=SPARE_BYTES))
    over = [
        Side(name=step.way, unit=Unit.BYTES, measured=Quantity(value=step.bytes - 2 * shape.activation))
        for shape in shapes
        for step in shape.steps
        if step.who == OURS
    ]
    return [*judged, *_worst("(bytes of ours - two activations) / 2 KiB", [(side, spare) for side in over], 1.0)]


def _side(step: Step, unit: Unit) -> Side:
    value = step.seconds if unit is Unit.SECONDS else Quantity(value=step.bytes)
    return Side(name=step.way, unit=unit, measured=value)


def _worst(what: str, sides: Sequence[tuple[Side, Side]], goal: float) -> list[Figure]:
    """Return the figure of the pair with the largest ratio, with the range of all; nothing if no pair was measured."""
    if not sides:
        return []
    ratios = [ours.measured.value / theirs.measured.value for ours, theirs in sides]
    worst = max(ratios)
    ours, theirs = sides[ratios.index(worst)]
    ratio = Quantity(value=worst, low=min(ratios), high=worst, samples=tuple(ratios))
    return [figure(what, ours, theirs, at_most(goal), ratio, "over the shapes")]


def times_table(shapes: Sequence[Shape]) -> Table:
    """Return the times."""
    ways = list(dict.fromkeys(step.way for shape in shapes for step in shape.steps))
    columns = [TableColumn(name=way, unit=Unit.SECONDS, spread="quartiles") for way in ways]
    rows: list[dict[str, Cell]] = [
        {"input": _spaced(shape.name), "steps": shape.runs, **{step.way: step.seconds for step in shape.steps}}
        for shape in shapes
    ]
    return Table(
        name="times",
        title="forward and backward on 2 workers, median",
        columns=(TableColumn(name="input"), TableColumn(name="steps"), *columns),
        rows=tuple(rows),
    )


def needs_table(shapes: Sequence[Shape]) -> Table:
    """Return what a step holds at most, and what a rank sends."""
    who = list(dict.fromkeys(step.who for shape in shapes for step in shape.steps))
    meeting = [name for name in who if name != LOCAL]
    names = ["two activations", *who, *(f"{name}: {what}" for name in meeting for what in ("exchanges", "bytes sent"))]
    rows = []
    for shape in shapes:
        row: dict[str, Cell] = {"input": _spaced(shape.name), "two activations": _count(2 * shape.activation)}
        for name in who:
            most = max((step for step in shape.steps if step.who == name), key=lambda step: step.bytes)
            row[name] = _count(most.bytes)
            if name in meeting:
                row |= {f"{name}: exchanges": _count(most.collectives), f"{name}: bytes sent": _count(most.sent)}
        rows.append(row)
    return Table(
        name="needs",
        title="what a step holds at most, in bytes, and what a rank sends",
        columns=(TableColumn(name="input"), *(TableColumn(name=name, unit=Unit.COUNT) for name in names)),
        rows=tuple(rows),
    )


def _count(value: int) -> Quantity:
    return Quantity(value=value)


def _spaced(name: str) -> str:
    return name.replace("x", " x ")


SHAPES = BenchOption(
    name="shapes",
    help="Inputs of each worker, as batch x features or batch x channels x height x width.",
    default=(*GRID, *IMAGES),
    quick=(WIDEST, IMAGES[0]),
    choices=(*GRID, *IMAGES),
)
RUNS = BenchOption(
    name="runs", help="Steps timed for each way; a tenth for images.", default=1000, quick=40, minimum=40
)
REPEATS = repeats(20, quick=2, what="In how many turns these are timed.")
BENCHMARK = Benchmark(
    name="syncbn",
    help="Time and memory of SyncBatchNorm on 2 workers, beside a version by hand and local BatchNorm",
    options=(SHAPES, RUNS, REPEATS),
    run=run,
    check=check,
)
