"""The tables of `lockstep bench data`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from lockstep.bench.data import WORKERS, Found


def tables(found: Found) -> list[Table]:
    """Return what was measured, and the ratios beside what was promised."""
    measured = Table(title="the same items, three ways", title_justify="left", title_style="bold")
    for heading in ("items", "held as"):
        measured.add_column(heading)
    headings = [
        "start, spawn",
        "the data's part",
        "start, server",
        *(f"epoch, {n} workers" for n in WORKERS),
        "files",
        "private",
        "shared",
    ]
    for heading in [*headings, "copies", "trained by hand", "in Lightning"]:
        measured.add_column(heading, justify="right")
    for row in found.rows:
        if row.why_not:
            measured.add_row(str(row.items), row.side, f"[yellow]{escape(row.why_not)}[/yellow]")
            continue
        measured.add_row(
            str(row.items),
            row.side,
            _seconds(row.start),
            _seconds(row.handed, 1000),
            _seconds(row.forked),
            *(_seconds(row.epoch[n], 1000) for n in WORKERS),
            str(row.descriptors),
            f"{row.private / 2**20:.0f} MiB",
            f"{row.shared / 2**20:.0f} MiB",
            f"{row.copies:.2f}",
            *(_training(found) for found in (row.by_hand, row.lightning)),
        )
    goals = Table(title="against the goals", title_justify="left", title_style="bold")
    goals.add_column("ratio of")
    for heading in ("median", "middle half", "goal"):
        goals.add_column(heading, justify="right")
    for goal in found.goals:
        spread = "" if goal.spread is None else f"{goal.spread[0]:.3g} to {goal.spread[1]:.3g}"
        goals.add_row(escape(goal.what), f"{goal.ratio:.4g}", spread, f"at most {goal.most:g}")
    return [measured, goals]


def _training(found: float | str | None) -> str:
    return "" if found is None else f"{found:.1f} s" if isinstance(found, float) else escape(found)


def _seconds(times: Sequence[float], factor: int = 1) -> str:
    """Return the median, with the fastest and the slowest."""
    shown = [value * factor for value in (statistics.median(times), min(times), max(times))]
    unit = "s" if factor == 1 else "ms"
    digits = 1 if shown[0] < 100 else 0
    low, high = (f"{value:.{digits}f}" for value in shown[1:])
    return f"{shown[0]:.{digits}f} {unit}\n{low} to {high}"
