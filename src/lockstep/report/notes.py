"""Notes: what a reader should know before trusting a row. Nothing is dropped for it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from lockstep.report.collect import Run
from lockstep.report.parity import unsteady
from lockstep.report.rows import Row
from lockstep.strategy_names import EXACT
from lockstep.train.checkpoint_header import BITS_DEPEND_ON

OUTLIER = 1.5
"""A repeat that took so many times the median of the others is marked."""
ACCOUNTED = 0.05
"""The share of a step that may go unexplained."""
MEMORY_WORDS = ("MemoryError", "can't allocate memory", "out of memory", "OutOfMemoryError", "Cannot allocate memory")


def notes(row: Row, runs: Sequence[Run], first: Run | None, why_not: str = "") -> tuple[str, ...]:
    """Return the notes of a row; `why_not` is why it has fewer repeats than asked for, if it has."""
    if not runs or first is None:
        return ()
    found = [f"stopped after {len(runs)} of its repeats: {why_not}"] if why_not else []
    if not row.finite:
        found.append("the loss or a metric is not a finite number: its figures say nothing about training")
    if any(run.order.get("resumed") for run in runs):
        found.append("it was broken off and went on: its time and throughput are those of the last attempt")
    found += slow_repeats(runs)
    if told := unsteady(runs):
        blame = ": the recipe itself" if row.strategy in EXACT else ""
        found.append(told + blame)
    if row.unaccounted is not None and abs(row.unaccounted) > ACCOUNTED:
        found.append(f"the parts leave {row.unaccounted:.0%} of the step unaccounted for")
    if row.step_seconds and not row.parts:
        found.append("steps were not divided into parts")
    found += _elsewhere(runs[0], first)
    return tuple(found)


def slow_repeats(runs: Sequence[Run]) -> list[str]:
    """Name the repeats that were much slower than the others; they are kept."""
    steps = [float(run.result["step_seconds"]) for run in runs]
    found = []
    for place, seconds in enumerate(steps):
        others = steps[:place] + steps[place + 1 :]
        if others and seconds > OUTLIER * statistics.median(others):
            times = seconds / statistics.median(others)
            found.append(f"repeat {place + 1} took {times:.1f} times the others' time: kept, see the spread")
    return found


def reason(text: str) -> str:
    """Put how a run failed into one line: where, and what was raised last."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()] or ["no reason was given"]
    if any(word in text for word in MEMORY_WORDS):
        return f"does not fit into memory: {_joined(lines)}"
    return _joined(lines)


def _joined(lines: Sequence[str]) -> str:
    first, last = lines[0], lines[-1]
    return first if len(lines) == 1 else f"{first.removesuffix(':')}: {last}"


def _elsewhere(run: Run, first: Run) -> list[str]:
    """Say if a row was made by other versions, or on another host, than the first row."""
    found = []
    mine, theirs = run.order["versions"], first.order["versions"]
    other = [
        f"{name} {mine.get(name)} ({theirs.get(name)})" for name in BITS_DEPEND_ON if mine.get(name) != theirs.get(name)
    ]
    if other:
        found.append(f"made with other versions than the first row: {', '.join(other)}")
    if _place(run) != _place(first):
        found.append(f"started on {_place(run)}, the first row on {_place(first)}")
    return found


def _place(run: Run) -> str:
    cpu = run.order.get("cpu")
    return f"{run.order.get('host')}{f' ({cpu})' if cpu else ''}"
