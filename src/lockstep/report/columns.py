"""The columns of the full table, once for every format; and those of its ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lockstep.report.rows import PARTS, RankRow, Row
from lockstep.report.units import NONE, digits, duration, rate, share, size, spread, times


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column."""

    heading: str
    """As shown."""
    text: Callable[[Row], str]
    """What it says of a row."""
    number: bool = True
    """Whether it is a figure, to be aligned right."""


def columns(rows: Sequence[Row]) -> list[Column]:
    """Return the columns after the strategy's name; metrics have one each, and what no row has is left out."""
    measure = next((row.memory_measure for row in rows if row.memory_measure), "peak memory")
    metrics = dict.fromkeys(name for row in rows for name in row.metrics or {})
    found = [
        Column(heading="workers", text=lambda row: str(row.workers)),
        Column(heading="threads each", text=lambda row: str(row.threads or NONE)),
        Column(heading="batch", text=lambda row: _batch(row)),
        Column(heading="time", text=lambda row: spread(row.seconds, row.seconds_spread if row.repeats > 1 else None)),
        Column(heading="step", text=lambda row: spread(row.step_seconds, row.step_spread)),
        Column(heading="samples/s", text=lambda row: rate(row.samples_per_second)),
        Column(heading="speed-up over single", text=lambda row: times(row.speed_up)),
        Column(heading="over single, all cores", text=lambda row: times(row.speed_up_all_cores)),
        Column(heading="efficiency", text=lambda row: share(row.efficiency)),
        Column(heading="start-up", text=lambda row: duration(row.start_seconds)),
        Column(heading="of it compiling", text=lambda row: duration(row.compile_seconds)),
        Column(heading=f"{measure}, largest rank", text=lambda row: size(row.largest_memory or None)),
        Column(heading="all ranks", text=lambda row: size(row.total_memory or None)),
        Column(heading="exchange hidden", text=lambda row: share(row.overlap)),
        Column(heading="slowest rank", text=lambda row: NONE if row.slowest_rank is None else str(row.slowest_rank)),
        Column(heading="loss", text=lambda row: NONE if row.loss is None else f"{row.loss:.4f}"),
        *(Column(heading=name, text=_metric(name)) for name in metrics),
        Column(heading="parity", text=lambda row: row.parity or NONE, number=False),
        Column(heading="digest", text=_digest, number=False),
    ]
    ran = [row for row in rows if row.repeats]
    return [column for column in found if any(column.text(row) != NONE for row in ran)]


def rank_headings() -> tuple[str, ...]:
    """Return the columns of a rank."""
    return ("rank", "host", "step", *PARTS, "hidden", "sent a step", "peak memory", "loss")


def rank_cells(rank: RankRow) -> tuple[str, ...]:
    """Return what those columns say."""
    return (
        str(rank.rank),
        rank.host or NONE,
        duration(rank.step_seconds),
        *(duration(rank.parts.get(part)) for part in PARTS),
        duration(rank.hidden) if rank.hidden else NONE,
        size(rank.sent) if rank.sent else NONE,
        size(rank.peak_memory or None),
        NONE if rank.loss is None else f"{rank.loss:.4f}",
    )


def _batch(row: Row) -> str:
    if row.global_batch is None:
        return NONE
    each = "" if row.batch_per_worker is None else f" ({digits(row.batch_per_worker).removesuffix('.0')} each)"
    return f"{row.global_batch:,}{each if row.workers > 1 else ''}"


def _metric(name: str) -> Callable[[Row], str]:
    def text(row: Row) -> str:
        value = (row.metrics or {}).get(name)
        if value is None:
            return NONE
        return f"{value:.1%}" if name == "accuracy" else f"{value:.4f}"

    return text


def _digest(row: Row) -> str:
    if not row.repeats:
        return NONE
    return (row.digest[:12] or "repeats differ") + ("*" if row.depends_on_workers else "")
