"""Figures from samples: the statistics that several benchmarks share."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from lockstep.bench.contract.measurements import Figure, Goal, Quantity, Side, Unit
from lockstep.train.steps import quartiles


def median(samples: Sequence[float]) -> Quantity:
    """Return the median with the lowest and the highest."""
    return Quantity(value=statistics.median(samples), low=min(samples), high=max(samples), samples=tuple(samples))


def median_and_quartiles(samples: Sequence[float]) -> Quantity:
    """Return the median with the quarter points."""
    low, middle, high = quartiles(samples)
    return Quantity(value=middle, low=low, high=high, samples=tuple(samples))


def seconds(name: str, measured: Quantity) -> Side:
    """Return a side that is a time."""
    return Side(name=name, unit=Unit.SECONDS, measured=measured)


def at_most(limit: float) -> Goal:
    """Return the goal of ours / theirs."""
    return Goal(limit=limit)


def at_least(limit: float) -> Goal:
    """Return the goal of theirs / ours."""
    return Goal(limit=limit, at_least=True)


def figure(what: str, ours: Side, theirs: Side, goal: Goal, ratio: Quantity | None = None, spread: str = "") -> Figure:
    """Return a judged figure; the ratio is that of the two values unless it was taken in pairs."""
    if ratio is None:
        over, under = (theirs, ours) if goal.at_least else (ours, theirs)
        ratio = Quantity(value=over.measured.value / under.measured.value)
    return Figure(
        what=what,
        ours=ours,
        theirs=theirs,
        ratio=ratio,
        spread=spread,
        goal=goal,
        reached=goal.reached(ratio.value),
    )
