"""The recommendation: the fastest that fits, the leanest, and by how much; or that there is no clear winner.

Where a row has no spread (one repeat of few steps), nothing is called faster than anything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from lockstep.registry import BASELINE, DEFAULT
from lockstep.report.rows import FEWEST_STEPS, Row
from lockstep.report.sweep import sweeps
from lockstep.report.units import plural
from lockstep.train.same_bits import promises_bits

NOTICED = 1.02
"""Times the least memory, from which more of it is worth a word."""
MANY_TIMES = 1.5
"""From here on a factor says more than a percentage."""


def recommend(rows: Sequence[Row], cpus: int) -> tuple[str, ...]:
    """Return the recommendation, a sentence each; empty if nothing ran. `cpus` could compute, or 0: not known."""
    ran = [row for row in rows if row.step_seconds and row.finite]
    if not ran:
        return ()
    fastest = min(ran, key=lambda row: row.step_seconds or math.inf)
    untold = [row for row in ran if row.step_spread is None]
    sentences = [_first(fastest, ran, untold), _leanest(None if untold else fastest, ran), _lanes(ran)]
    sentences.append(_idle(ran, cpus))
    unfit = [row.name for row in rows if row.why_not.startswith("does not fit")]
    if unfit:
        sentences.append(f"{_list(unfit)} did not fit into memory.")
    if not untold and all(row.repeats == 1 for row in ran):
        sentences.append(
            "One repeat each: the spread is that of the steps; --repeats 3 would show the machine's noise too."
        )
    return tuple(filter(None, sentences))


def _first(fastest: Row, ran: Sequence[Row], untold: Sequence[Row]) -> str:
    """Say which row is the fastest, as far as the samples can tell."""
    if len(ran) == 1:
        return f"Only {fastest.name} ran well: {_ms(fastest)} per step."
    if untold:
        whose = "" if len(untold) == len(ran) else f" ({_list([row.name for row in untold])})"
        return (
            f"Which way is the fastest cannot be told: one repeat of fewer than {FEWEST_STEPS} steps after warm-up has "
            f"no spread{whose}. Raise --repeats (3, say), or --steps."
        )
    equals = [row for row in ran if row is not fastest and _overlap(fastest, row)]
    return _tie(fastest, equals) if equals else _winner(fastest, ran)


def _winner(fastest: Row, ran: Sequence[Row]) -> str:
    others = sorted((row for row in ran if row is not fastest), key=lambda row: row.step_seconds or math.inf)
    text = f"Fastest: {fastest.name}, {_ms(fastest)} per step"
    shown = [f"{_share(fastest, others[0])} of the time of {others[0].name}"]
    single = next((row for row in others[1:] if row.strategy == BASELINE), None)
    if single is not None:
        shown.append(f"{_share(fastest, single)} of that of {single.name}")
    return f"{text}: {', '.join(shown)}."


def _tie(fastest: Row, equals: Sequence[Row]) -> str:
    names = [f"{row.name} ({_ms(row)})" for row in (fastest, *equals)]
    leanest = min((fastest, *equals), key=lambda row: row.total_memory or math.inf)
    lean = f"; of these {leanest.name} takes the least memory" if leanest.total_memory else ""
    return f"No clear winner: the spreads of {_list(names)} overlap{lean}."


def _leanest(fastest: Row | None, ran: Sequence[Row]) -> str:
    measured = [row for row in ran if row.total_memory]
    if len(measured) < 2:
        return ""
    leanest = min(measured, key=lambda row: row.total_memory)
    text = f"Leanest: {leanest.name}, {leanest.total_memory / 2**20:.0f} MiB over all ranks"
    if fastest is None or fastest not in measured or fastest.total_memory < NOTICED * leanest.total_memory:
        return f"{text}."
    return f"{text}; {fastest.name} takes {fastest.total_memory / leanest.total_memory:.2f} times that."


def _lanes(ran: Sequence[Row]) -> str:
    """Say what more lanes cost, and what they are good for; empty if one number of lanes ran."""
    able = [rows for rows in sweeps(ran).values() if promises_bits(rows[0].strategy)]
    if not able:
        return ""
    few, *_, many = max(able, key=lambda rows: (rows[0].strategy == DEFAULT, rows[0].workers))
    workers = f" on {plural(few.workers, 'worker')}" if few.workers > 1 else ""
    return (
        f"{few.strategy}{workers}: {many.lanes} lanes in place of {few.lanes} {_cost(few, many)}; "
        f"they hold the bits for up to {plural(many.lanes, 'worker')}."
    )


def _idle(ran: Sequence[Row], cpus: int) -> str:
    """Say that CPUs were idle in every row of several workers; empty if they were not."""
    used = [row.workers * row.threads for row in ran if row.strategy != BASELINE]
    if not used or max(used) >= cpus:
        return ""
    return (
        f"At most {max(used)} of {cpus} CPUs computed with several workers: more --workers, or --threads all, would "
        "use the rest."
    )


def _cost(few: Row, many: Row) -> str:
    if few.step_spread is None or many.step_spread is None:
        return "have a cost that so few steps cannot tell"
    times = (many.step_seconds or math.nan) / (few.step_seconds or math.nan)
    if _overlap(few, many) and _overlap(many, few):
        return "cost no more than the runs differ among themselves"
    if times >= MANY_TIMES:
        return f"cost {times:.1f} times the step"
    return f"cost {times - 1:.0%} more per step" if times > 1 else f"take {times:.2f} of the step"


def _overlap(one: Row, other: Row) -> bool:
    if one.step_spread is None or other.step_spread is None:
        return False
    return other.step_spread[0] <= one.step_spread[1]


def _share(one: Row, other: Row) -> str:
    return f"{(one.step_seconds or math.nan) / (other.step_seconds or math.nan):.2f}"


def _ms(row: Row) -> str:
    return f"{(row.step_seconds or math.nan) * 1000:.1f} ms"


def _list(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
