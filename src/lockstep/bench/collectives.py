"""`lockstep bench collectives`: all_reduce over gloo, shm, shm in place, and what copying the bytes takes."""

from __future__ import annotations

import json as jsonlib
import statistics
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from lockstep.bench.ranks.start import run_ranks

if TYPE_CHECKING:
    from rich.table import Table

KIB, MIB = 1 << 10, 1 << 20
SIZES: Final = (256, 4 * KIB, 64 * KIB, MIB, 25 * MIB, 64 * MIB)
WORKERS: Final = (2, 4)
WAYS: Final = ("gloo", "shm", "shm in place", "copy limit")
DDP: Final = ("torch DDP on gloo", "torch DDP on shm")


@dataclass(frozen=True, kw_only=True)
class Row:
    """How long one way took at one size."""

    workers: int
    """Ranks, all on this machine."""
    size: int
    """Bytes of one rank's message; for a DDP step, of all gradients."""
    way: str
    """One of WAYS or DDP."""
    seconds: float
    """Median of one call on the slowest rank: of the calls of a repeat, and then of the repeats."""
    fastest: float
    """The same, of the best repeat."""


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A ratio that was aimed at, and what was found."""

    what: str
    """The two sides."""
    goal: float
    """At least this, or at most where `at_most`."""
    found: float
    """The ratio of the medians."""
    at_most: bool = False
    """Whether smaller is better."""

    @property
    def reached(self) -> bool:
        """Tell whether the goal was reached."""
        return self.found <= self.goal if self.at_most else self.found >= self.goal


def run(workers: list[int], sizes: list[int], repeats: int) -> list[Row]:
    """Measure every way at every size in turn, `repeats` times over, for each number of workers."""
    return [row for count in workers for row in _run_ranks(count, sizes, repeats)]


def _run_ranks(workers: int, sizes: list[int], repeats: int) -> list[Row]:
    plan = {"sizes": sizes, "repeats": repeats}
    found = run_ranks("lockstep.bench.ranks.collectives", workers, plan)
    return [_row(workers, entry) for entry in found]


def _row(workers: int, entry: dict[str, Any]) -> Row:
    samples = entry["seconds"]
    return Row(
        workers=workers,
        size=entry["size"],
        way=entry["way"],
        seconds=statistics.median(samples),
        fastest=min(samples),
    )


def goals(rows: list[Row]) -> list[Goal]:
    """Return the ratios that the backend aims at, as far as the rows hold both sides."""
    seconds = {(row.workers, row.size, row.way): row.seconds for row in rows}
    found: list[Goal] = []

    def add(workers: int, size: int, pair: tuple[str, str], goal: float, *, at_most: bool = False) -> None:
        first, second = (seconds.get((workers, size, way)) for way in pair)
        if first is not None and second is not None:
            what = f"{pair[0]} / {pair[1]}, {readable(size)}, W = {workers}"
            found.append(Goal(what=what, goal=goal, found=first / second, at_most=at_most))

    for workers, goal in ((2, 10.0), (4, 25.0)):
        for size in (size for size in SIZES if size <= 64 * KIB):
            add(workers, size, ("gloo", "shm"), goal)
    for workers in WORKERS:
        add(workers, 25 * MIB, ("gloo", "shm"), 3.0)
        add(workers, 25 * MIB, ("gloo", "shm in place"), 6.0)
    add(2, 25 * MIB, ("shm in place", "copy limit"), 1.5, at_most=True)
    for row in rows:
        if row.way == DDP[1] and row.workers == 2:
            add(2, row.size, (DDP[1], DDP[0]), 0.9, at_most=True)
    return found


def readable(size: int) -> str:
    """Return a byte count as people write it."""
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size / unit:g} {name}" if size % unit == 0 else f"{size / unit:.1f} {name}"
    return f"{size} B"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def tables(rows: list[Row]) -> list[Table]:
    """Return the figures and the goals as tables."""
    from rich.table import Table

    seconds = {(row.workers, row.size, row.way): row.seconds for row in rows}
    figures = Table(title="all_reduce, median time of one call")
    for heading in ("W", "message", *WAYS, "gloo / shm", "gloo / in place"):
        figures.add_column(heading, justify="right")
    for workers, size in sorted({(row.workers, row.size) for row in rows if row.way in WAYS}):
        times = [seconds.get((workers, size, way)) for way in WAYS]
        ratios = [f"{times[0] / t:.1f}" if times[0] and t else "-" for t in times[1:3]]
        figures.add_row(str(workers), readable(size), *map(_time, times), *ratios)
    steps = Table(title="torch DDP on an MLP of 6.5 M parameters, median time of one step")
    for heading in ("W", *DDP, "shm / gloo"):
        steps.add_column(heading, justify="right")
    for workers, size in sorted({(row.workers, row.size) for row in rows if row.way in DDP}):
        gloo, shm = (seconds[(workers, size, way)] for way in DDP)
        steps.add_row(str(workers), _time(gloo), _time(shm), f"{shm / gloo:.2f}")
    aims = Table(title="goals, on two cores")
    for heading in ("ratio", "goal", "found", ""):
        aims.add_column(heading)
    for goal in goals(rows):
        sign = "<=" if goal.at_most else ">="
        aims.add_row(goal.what, f"{sign} {goal.goal:g}", f"{goal.found:.2f}", "reached" if goal.reached else "missed")
    return [figures, steps, aims]


def main(*, json: bool = False, repeats: int = 15) -> None:
    """Run all of it and print the tables, or JSON."""
    rows = run(list(WORKERS), list(SIZES), repeats)
    if json:
        aims = [{**asdict(goal), "reached": goal.reached} for goal in goals(rows)]
        found = {"rows": [asdict(row) for row in rows], "goals": aims}
        sys.stdout.write(jsonlib.dumps(found, indent=1) + "\n")
        return
    from rich.console import Console

    console = Console()
    for table in tables(rows):
        console.print(table)


if __name__ == "__main__":
    main(json="--json" in sys.argv)
