"""What each way needs, as a table for a terminal and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from rich.markup import escape
from rich.table import Table

from lockstep.fit.choosing import Candidate, Limit
from lockstep.fit.lane_facts import LaneFacts
from lockstep.fit.need import PARTS
from lockstep.report.units import size
from lockstep.report.wording import shared

NOTE = (
    "Bytes of the largest worker at its peak, as a run reports it. Memory that workers of a host share (the arena: "
    "weights and partial sums) counts in each worker that touches it, and once in the column host."
)


def fit_table(rows: Sequence[Candidate], facts: LaneFacts, limit: Limit) -> Table:
    """Return a row for each way; a part that no way needs has no column."""
    shown = [part for part in PARTS if any(row.need is not None and row.need.parts()[part] for row in rows)]
    title = f"{facts.measure}, {facts.lanes} lanes of {facts.global_batch} samples; {size(limit.bytes)} ({limit.told})"
    table = Table(title=escape(title), title_justify="left")
    for heading in ("strategy", "workers", *shown, "worker", "host", "fits"):
        table.add_column(heading, justify="left" if heading in ("strategy", "fits") else "right")
    for row in rows:
        if row.need is None:
            empty = [""] * (len(shown) + 2)
            table.add_row(row.spec.strategy, str(row.spec.workers), *empty, "cannot be")
            continue
        parts = [size(row.need.parts()[part]) if row.need.parts()[part] else "" for part in shown]
        fits = "[green]yes[/]" if row.fits else f"[red]no[/]: {escape(row.why_not)}"
        total, host = size(row.need.total), size(row.need.host)
        table.add_row(row.spec.strategy, str(row.spec.workers), *parts, total, host, fits)
    return table


def why_not_lines(rows: Sequence[Candidate]) -> list[str]:
    """Return why ways cannot be, each reason once: a reason is too long for a cell of the table."""
    reasons = [(f"{row.spec.strategy}, {row.spec.workers}", row.why_not) for row in rows if row.need is None]
    return [f"cannot be {names}: {why}" for names, why in shared(reasons)]


def as_json(rows: Sequence[Candidate], facts: LaneFacts, limit: Limit) -> dict[str, object]:
    """Return the same as plain values."""
    return {
        "limit": asdict(limit),
        "facts": asdict(facts),
        "ways": [
            {
                "strategy": row.spec.strategy,
                "workers": row.spec.workers,
                "fits": row.fits,
                "why_not": row.why_not,
                "worker": None if row.need is None else row.need.total,
                "host": None if row.need is None else row.need.host,
                "parts": None if row.need is None else row.need.parts(),
            }
            for row in rows
        ],
    }
