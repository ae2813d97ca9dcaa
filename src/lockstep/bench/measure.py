"""`lockstep bench measure`: what it costs to divide every step into its parts, against `--no-measure`."""

from __future__ import annotations

import json as jsonlib
import statistics
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from lockstep.bench.ranks.start import run_ranks

if TYPE_CHECKING:
    from rich.table import Table

WAYS = {"single": (1, None), "ddp": (2, "shm"), "torch-ddp": (2, "gloo")}
"""Workers and backend by strategy."""
GOAL = 0.02


@dataclass(frozen=True, kw_only=True)
class Row:
    """One strategy on `mlp`."""

    strategy: str
    """Which."""
    workers: int
    """How many."""
    measured: float
    """Median seconds of a step with everything noted."""
    plain: float
    """Median seconds of a step with `--no-measure`."""
    cost: float
    """The median over pairs of neighbours in time: how much longer the measured one took, as a share."""
    spread: tuple[float, float]
    """The quarter points of those pairs."""


def run(repeats: int, strategies: tuple[str, ...] = tuple(WAYS)) -> list[Row]:
    """Time both sides in turn in the same processes, so that a pair sees the same machine."""
    rows = []
    for strategy in strategies:
        workers, backend = WAYS[strategy]
        plan = {"strategy": strategy, "backend": backend, "repeats": repeats}
        found = run_ranks("lockstep.bench.ranks.measure", workers, plan)
        pairs = [one / other - 1.0 for one, other in zip(found["measured"], found["plain"], strict=True)]
        low, middle, high = statistics.quantiles(pairs, n=4) if len(pairs) > 1 else pairs * 3
        rows.append(
            Row(
                strategy=strategy,
                workers=workers,
                measured=statistics.median(found["measured"]),
                plain=statistics.median(found["plain"]),
                cost=middle,
                spread=(low, high),
            )
        )
    return rows


def table(rows: list[Row]) -> Table:
    """Return the rows."""
    from rich.table import Table

    made = Table(title="mlp: time of a step with and without measuring", title_justify="left")
    made.add_column("strategy")
    for heading in ("workers", "measured", "--no-measure", "cost", "quarter points", "goal"):
        made.add_column(heading, justify="right")
    for row in rows:
        low, high = (f"{value:+.1%}" for value in row.spread)
        sides = (f"{seconds * 1e3:.2f} ms" for seconds in (row.measured, row.plain))
        made.add_row(
            row.strategy, str(row.workers), *sides, f"{row.cost:+.1%}", f"{low} to {high}", f"at most {GOAL:.0%}"
        )
    return made


def main(*, json: bool, repeats: int) -> None:
    """Run all of it and print the table, or JSON."""
    rows = run(repeats)
    if json:
        sys.stdout.write(jsonlib.dumps([asdict(row) for row in rows], indent=1) + "\n")
        return
    from lockstep.report.render import console

    console().print(table(rows))
