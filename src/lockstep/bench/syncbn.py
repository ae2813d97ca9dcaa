"""`lockstep bench syncbn`: SyncBatchNorm beside a version written by hand, and local BatchNorm as the limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from lockstep.bench.ranks.start import run_ranks

GRID = [(batch, width) for batch in (32, 64) for width in (128, 256, 512, 1024)]
IMAGES = [(16, 32, 16, 16), (16, 64, 32, 32), (32, 256, 8, 8)]
FLOAT_BYTES = 4
SPARE_BYTES = 2048


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One way of normalising one shape; a step is a forward and its backward, on every worker."""

    who: str
    """`local`, `by hand`, `torch` or `ours`."""
    backend: str
    """What the ranks talk through; for `local`, the device."""
    seconds: float
    """Of a step on the slowest rank, the median."""
    quartiles: tuple[float, float]
    """A quarter of the steps were faster, and a quarter slower."""
    bytes: int
    """The most that a step holds at once besides its input, its parameters and what is kept between steps;
    the gradients of the parameters are not counted."""
    collectives: int
    """Exchanges with the other ranks."""
    sent: int
    """Bytes that a rank hands over to them."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """All ways of one shape."""

    shape: tuple[int, ...]
    """Of the input on each worker."""
    runs: int
    """How many steps were timed."""
    cells: tuple[Cell, ...]
    """In the order in which they took turns."""

    def cell(self, who: str, backend: str) -> Cell | None:
        """Return one way, if it could run here."""
        return next((cell for cell in self.cells if (cell.who, cell.backend) == (who, backend)), None)

    @property
    def activation(self) -> int:
        """Bytes of the input."""
        size = FLOAT_BYTES
        for length in self.shape:
            size *= length
        return size


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A ratio over all shapes, or those it speaks of."""

    what: str
    worst: float
    best: float
    goal: float


def run(
    runs: int, *, workers: int = 2, rounds: int = 20, shapes: Sequence[tuple[int, ...]] = (*GRID, *IMAGES)
) -> list[Shape]:
    """Measure every way of every shape in one interleaved run."""
    order = {"shapes": shapes, "runs": runs, "rounds": rounds}
    return [_read(shape) for shape in run_ranks("lockstep.bench.ranks.syncbn", workers, order)]


def _read(found: dict[str, Any]) -> Shape:
    shape = tuple(found["shape"])
    gradients = 2 * shape[1] * FLOAT_BYTES
    cells = [
        Cell(**{**cell, "quartiles": tuple(cell["quartiles"]), "bytes": cell["bytes"] - gradients})
        for cell in found["cells"]
    ]
    return Shape(shape=shape, runs=found["runs"], cells=tuple(cells))


def ratios(
    shapes: Sequence[Shape], ours: tuple[str, str], other: tuple[str, str], what: str = "seconds"
) -> list[float]:
    """Return ours over the other, by shape, where both ran."""
    pairs = [(shape.cell(*ours), shape.cell(*other)) for shape in shapes]
    return [getattr(mine, what) / getattr(theirs, what) for mine, theirs in pairs if mine and theirs]


def goals(shapes: Sequence[Shape]) -> list[Goal]:
    """Return what was asked for, beside what was found."""
    widest = [shape for shape in shapes if shape.shape == (64, 1024)]
    wanted = [
        ("time, ours on shm / by hand on gloo", ratios(shapes, ("ours", "shm"), ("by hand", "gloo")), 0.25),
        ("time, ours / by hand, both on gloo", ratios(shapes, ("ours", "gloo"), ("by hand", "gloo")), 0.7),
        ("time, ours / by hand, both on shm", ratios(shapes, ("ours", "shm"), ("by hand", "shm")), 0.7),
        ("time at 64 x 1024, ours on shm / local", ratios(widest, ("ours", "shm"), ("local", "cpu")), 2.5),
        ("bytes, ours / by hand", ratios(shapes, ("ours", "gloo"), ("by hand", "gloo"), "bytes"), 0.45),
    ]
    found = [Goal(what=what, worst=max(seen), best=min(seen), goal=goal) for what, seen, goal in wanted if seen]
    over = [
        (cell.bytes - 2 * shape.activation) / SPARE_BYTES
        for shape in shapes
        for cell in shape.cells
        if cell.who == "ours"
    ]
    found.append(Goal(what="(bytes of ours - two activations) / 2 KiB", worst=max(over), best=min(over), goal=1.0))
    return found


def as_json(shapes: Sequence[Shape]) -> dict[str, Any]:
    """Return plain values."""
    return {"shapes": [asdict(shape) for shape in shapes], "goals": [asdict(goal) for goal in goals(shapes)]}


def tables(shapes: Sequence[Shape]) -> list[Table]:
    """Return the times, the needs and the goals as tables."""
    columns = list(dict.fromkeys((cell.who, cell.backend) for shape in shapes for cell in shape.cells))
    ways = list(dict.fromkeys(who for who, _ in columns))
    meeting = [who for who in ways if who != "local"]
    times = _table("forward and backward, microseconds: median (quartiles)", ["input", "runs"], columns)
    needs = _table("what a step holds at most, in bytes, and what a rank sends", ["input", "two activations"], ways)
    for who in meeting:
        needs.add_column(f"{who}: exchanges, bytes sent", justify="right")
    for shape in shapes:
        name = " x ".join(map(str, shape.shape))
        times.add_row(name, str(shape.runs), *(_time(shape.cell(*column)) for column in columns))
        most = [max((cell for cell in shape.cells if cell.who == who), key=lambda cell: cell.bytes) for who in ways]
        sent = [f"{cell.collectives}, {cell.sent:,}" for cell in most if cell.who in meeting]
        needs.add_row(name, f"{2 * shape.activation:,}", *(f"{cell.bytes:,}" for cell in most), *sent)
    asked = Table(title="ratios over the shapes", title_justify="left", title_style="bold")
    asked.add_column("what")
    for heading in ("best", "worst", "goal"):
        asked.add_column(heading, justify="right")
    for goal in goals(shapes):
        asked.add_row(goal.what, f"{goal.best:.2f}", f"{goal.worst:.2f}", f"at most {goal.goal:.2f}")
    return [times, needs, asked]


def _table(title: str, first: list[str], columns: Sequence[str | tuple[str, str]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column(first[0])
    for heading in [*first[1:], *(way if isinstance(way, str) else ", ".join(way) for way in columns)]:
        table.add_column(heading, justify="right")
    return table


def _time(cell: Cell | None) -> str:
    if cell is None:
        return ""
    low, high = cell.quartiles
    return f"{cell.seconds * 1e6:.0f} ({low * 1e6:.0f}-{high * 1e6:.0f})"
