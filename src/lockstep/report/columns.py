"""The columns of a comparison's table, once for every format; and those of its ranks.

A page and Markdown have room for all of them. A terminal takes what fits, the most telling first, under shorter
headings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lockstep.report.parity import FIRST, OTHER_LANES, SAME
from lockstep.report.rows import RankRow, Row
from lockstep.report.units import NONE, digits, duration, rate, share, size, spread, times
from lockstep.train.schema.scalars import PARTS, Part


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column."""

    heading: str
    """As shown where there is room."""
    text: Callable[[Row], str]
    """What it says of a row."""
    number: bool = True
    """Whether it is a figure, to be aligned right."""
    narrow: str = ""
    """The heading on a terminal, if it is another."""
    brief: Callable[[Row], str] | None = None
    """What it says on a terminal, if that is shorter."""
    order: int | None = None
    """Which goes first when a terminal has no room: the highest; None: it is never there."""


@dataclass(frozen=True, kw_only=True)
class RankColumn:
    """One column of a way's ranks."""

    heading: str
    """As shown."""
    text: Callable[[Row, RankRow], str]
    """What it says of a rank."""
    number: bool = True
    """Whether it is a figure, to be aligned right."""
    terminal: bool = True
    """Whether a terminal shows it, too."""


def columns(rows: Sequence[Row]) -> list[Column]:
    """Return the columns after the strategy's name; metrics have one each, and what no row has is left out."""
    measure = _measure(rows)
    brief = measure.removesuffix(" on the device")
    every = [
        Column(heading="workers", text=lambda row: str(row.workers), order=1),
        Column(heading="threads each", narrow="threads", text=lambda row: str(row.threads or NONE), order=10),
        Column(heading="batch, all / worker", narrow="batch:\nall / worker", text=_batch, order=14),
        Column(
            heading="time",
            text=lambda row: spread(row.seconds, row.seconds_spread),
            brief=lambda row: duration(row.seconds),
            order=9,
        ),
        Column(heading="step", text=lambda row: spread(row.step_seconds, row.step_spread), brief=_step, order=0),
        Column(heading="samples/s", text=lambda row: rate(row.samples_per_second), order=6),
        Column(heading="speed-up over single", narrow="speed-up", text=lambda row: times(row.speed_up), order=2),
        Column(
            heading="over single, all cores",
            narrow="over all\ncores",
            text=lambda row: times(row.speed_up_all_cores),
            order=8,
        ),
        Column(heading="efficiency", narrow="effi-\nciency", text=lambda row: share(row.efficiency), order=11),
        Column(heading="start-up", text=lambda row: duration(row.start_seconds), order=13),
        Column(heading="compiling", text=lambda row: duration(row.compile_seconds or None), order=15),
        Column(
            heading=f"{measure}, largest rank",
            narrow=f"{brief}\nlargest",
            text=lambda row: size(row.largest_memory or None),
            order=4,
        ),
        Column(heading="predicted, largest rank", narrow="predicted\nlargest", text=_predicted, order=16),
        Column(heading="all ranks", narrow=f"{brief}\nall", text=lambda row: size(row.total_memory or None), order=7),
        Column(
            heading="reserved, largest rank",
            narrow="reserved\nlargest",
            text=lambda row: size(max(row.peak_reserved, default=None)),
            order=6,
        ),
        Column(heading="exchange hidden", text=lambda row: share(row.overlap)),
        Column(heading="bubble (in theory)", narrow="bubble", text=_bubble, brief=_measured_bubble, order=4),
        Column(heading="slowest rank", text=slowest),
        Column(heading="loss", text=lambda row: _loss(row.loss), order=5),
        *(
            Column(heading=name, text=_metric(key), order=5 if name == key else None)
            for key, name in _metrics(rows).items()
        ),
        Column(heading="parity", text=lambda row: row.parity or NONE, brief=_parity, number=False, order=3),
        Column(
            heading="digest",
            text=lambda row: _digest(row, 12),
            brief=lambda row: _digest(row, 8),
            number=False,
            order=12,
        ),
    ]
    ran = [row for row in rows if row.repeats]
    return [column for column in every if any(column.text(row) != NONE for row in ran)]


def rank_columns(rows: Sequence[Row]) -> list[RankColumn]:
    """Return the columns of the ranks of these rows; the first is the rank's number."""
    reserved = RankColumn(heading="reserved", text=lambda row, rank: size(rank.peak_reserved))
    return [
        RankColumn(heading="rank", text=lambda row, rank: str(rank.rank)),
        RankColumn(heading="host", text=lambda row, rank: rank.host or NONE, number=False),
        RankColumn(heading="time", text=lambda row, rank: duration(rank.seconds)),
        RankColumn(heading="step", text=lambda row, rank: duration(rank.step_seconds)),
        *(RankColumn(heading=part, text=_part(part), terminal=part == "wait") for part in PARTS),
        RankColumn(heading="hidden", text=lambda row, rank: duration(rank.hidden or None), terminal=False),
        RankColumn(heading="sent a step", text=lambda row, rank: size(rank.sent or None), terminal=False),
        RankColumn(heading=_measure(rows), text=lambda row, rank: size(rank.peak_memory or None)),
        *([reserved] if any(row.peak_reserved for row in rows) else []),
        RankColumn(heading="loss", text=lambda row, rank: _loss(rank.loss)),
        *(
            RankColumn(heading=name, text=_of_row(_metric(key)), terminal=name == key)
            for key, name in _metrics(rows).items()
        ),
    ]


def slowest(row: Row) -> str:
    """Name the rank that the others wait for."""
    return NONE if row.slowest_rank is None else str(row.slowest_rank)


def _bubble(row: Row) -> str:
    return NONE if row.bubble is None else f"{share(row.bubble.measured)} ({share(row.bubble.theory)})"


def _measured_bubble(row: Row) -> str:
    return share(None if row.bubble is None else row.bubble.measured)


def _measure(rows: Sequence[Row]) -> str:
    return next((row.memory_measure for row in rows if row.memory_measure), "peak memory")


def _metrics(rows: Sequence[Row]) -> dict[str, str]:
    """Return the headings of the metrics; a metric called loss is not the loss of the last step."""
    names = dict.fromkeys(name for row in rows for name in row.metrics or {})
    return {name: "loss, evaluated" if name == "loss" else name for name in names}


def _batch(row: Row) -> str:
    if row.global_batch is None or row.batch_per_worker is None:
        return NONE
    return f"{row.global_batch:,} / {digits(row.batch_per_worker).removesuffix('.0').removesuffix('.00')}"


def _predicted(row: Row) -> str:
    """Return what `lockstep fit` predicts, and in brackets how many times the measured it is."""
    if not row.predicted_memory or not row.largest_memory:
        return NONE
    return f"{size(row.predicted_memory)} ({row.predicted_memory / row.largest_memory:.2f})"


def _step(row: Row) -> str:
    if not row.step_seconds or row.step_spread is None:
        return duration(row.step_seconds)
    low, high = row.step_spread
    return f"{duration(row.step_seconds)} ±{(high - low) / 2 / row.step_seconds:.0%}"


def _loss(loss: float | None) -> str:
    return NONE if loss is None else f"{loss:.4f}"


def _metric(name: str) -> Callable[[Row], str]:
    def text(row: Row) -> str:
        value = (row.metrics or {}).get(name)
        return NONE if value is None else f"{value:.1%}" if name == "accuracy" else f"{value:.4f}"

    return text


def _part(name: Part) -> Callable[[Row, RankRow], str]:
    return lambda row, rank: duration(rank.parts.get(name))


def _of_row(text: Callable[[Row], str]) -> Callable[[Row, RankRow], str]:
    return lambda row, rank: text(row)


def _parity(row: Row) -> str:
    if row.parity.startswith(OTHER_LANES):
        return "first"
    return {SAME: SAME, FIRST: "first", "": NONE}.get(row.parity, row.parity.partition(" ")[0].rstrip(":"))


def _digest(row: Row, places: int) -> str:
    if not row.repeats:
        return NONE
    return (row.digest[:places] or "varies") + ("*" if row.depends_on_workers else "")
