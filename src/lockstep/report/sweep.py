"""A sweep over lanes: rows that differ in their number of lanes alone."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.report.rows import Row
from lockstep.report.units import plural

Common = tuple[str, int, int]
"""Strategy, workers, threads: what the rows of a sweep have in common."""


def sweeps(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows that ran with several numbers of lanes, ascending, by the name of what they have in common."""
    alike: dict[Common, list[Row]] = {}
    for row in rows:
        if row.step_seconds and row.lanes:
            alike.setdefault((row.strategy, row.workers, row.threads), []).append(row)
    several = {common: own for common, own in alike.items() if len({row.lanes for row in own}) > 1}
    return {_name(common, list(several)): sorted(own, key=lambda row: row.lanes) for common, own in several.items()}


def _name(common: Common, every: Sequence[Common]) -> str:
    """Return the strategy, and what tells it from the others of that strategy."""
    strategy, workers, threads = common
    own = [other for other in every if other[0] == strategy]
    parts = [strategy]
    if len({other[1] for other in own}) > 1:
        parts.append(plural(workers, "worker"))
    if len({other[2] for other in own}) > 1:
        parts.append(plural(threads, "thread"))
    return ", ".join(parts)
