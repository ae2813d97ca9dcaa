"""What a rank notes of its steps: a line each, and at the end a summary for the result."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from lockstep.strategies.clock import PARTS
from lockstep.train import memory_use
from lockstep.train.schema.rank_jsonl import NotFiniteLine, StepLine

if TYPE_CHECKING:
    from lockstep.strategies.clock import Part, Span
    from lockstep.strategies.stats import StepStats
    from lockstep.train.records import Records

WARMUP_STEPS = 2
"""Left out of medians and means: the first steps fill caches, and stock DDP lays out its buckets in them."""
TIMELINE = range(3, 8)
"""Steps whose laps are written one by one."""
READY_STEPS = 1000
"""How many steps are looked at to tell waiting from exchanging after the fact."""


def warmup(steps: int) -> int:
    """Return how many of so many steps are warm-up; at least one step is always measured."""
    return min(WARMUP_STEPS, max(0, steps - 1))


@dataclass
class StepLog:
    """One rank's steps."""

    records: Records
    device: str
    measure: bool = True
    """Whether lines hold more than time and loss."""
    samples: int = 0
    """Trained on in these steps, over all workers."""
    totals: list[float] = field(default_factory=list)
    parts: list[tuple[float, ...]] = field(default_factory=list)
    hidden: list[float] = field(default_factory=list)
    ready: list[float] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    last: StepStats | None = None

    def write(self, stats: StepStats, *, epoch: int, began: float, total: float) -> None:
        """Note one step."""
        self.totals.append(total)
        self.last = stats
        line = StepLine(
            step=stats.step,
            epoch=epoch,
            loss=stats.loss,
            weight=stats.weight,
            total=round(total, 7),
            began=began,
        )
        self.records.write(self._measured(line, stats) if self.measure else line)

    def write_not_finite(self, step: int, epoch: int) -> None:
        """Note a step that ended the run: its loss is not a finite number."""
        self.records.write(NotFiniteLine(step=step, epoch=epoch))

    def summary(self) -> list[float]:
        """Return this rank's figures in the order of `RankFigures`; plain numbers, to be gathered."""
        skip = warmup(len(self.totals))
        parts = [statistics.fmean(column) for column in zip(*self.parts[skip:], strict=True)] or [0.0] * len(PARTS)
        hidden, sent = (statistics.fmean(values[skip:] or [0]) for values in (self.hidden, self.sent))
        loss, weight = (self.last.loss, self.last.weight) if self.last else (0.0, 0.0)
        return [*quartiles(self.totals[skip:]), hidden, sent, loss, weight, *parts]

    def ready_table(self) -> list[list[float]]:
        """Return when the gradients were there, and the exchange, of steps where waiting is part of the exchange."""
        skip = warmup(len(self.totals))
        exchange = PARTS.index("exchange")
        rows = [[at, part[exchange]] for at, part in zip(self.ready, self.parts, strict=False)]
        return rows[skip:][-READY_STEPS:]

    def _measured(self, line: StepLine, stats: StepStats) -> StepLine:
        """Keep what the summary needs, and return the line with where the time went."""
        self.parts.append(tuple(stats.seconds[part] for part in PARTS))
        self.hidden.append(stats.hidden)
        self.sent.append(stats.sent)
        if stats.ready is not None:
            self.ready.append(stats.ready)
        laps = joined(stats.spans) if stats.step in TIMELINE else []
        lanes = tuple(lane for *_, lane in laps)
        return msgspec.structs.replace(
            line,
            seconds={part: round(stats.seconds[part], 7) for part in PARTS},
            hidden=round(stats.hidden, 7),
            sent=stats.sent,
            memory=memory_use.now(self.device),
            ready=stats.ready,
            spans=tuple((part, round(start, 7), round(length, 7)) for part, start, length, _ in laps) if laps else None,
            span_lanes=lanes if any(lane is not None for lane in lanes) else None,
        )


def joined(spans: Sequence[Span]) -> list[Span]:
    """Return laps with those of one part and one lane that follow each other made one."""
    together: list[Span] = []
    for name, start, length, lane in spans:
        if together and (together[-1][0], together[-1][3]) == (name, lane):
            together[-1] = (name, together[-1][1], start + length - together[-1][1], lane)
        else:
            together.append((name, start, length, lane))
    return together


def quartiles(times: Sequence[float]) -> tuple[float, float, float]:
    """Return the quarter points; of one value, that value."""
    if len(times) < 2:
        return (times[0],) * 3 if times else (0.0,) * 3
    low, middle, high = statistics.quantiles(times, n=4, method="inclusive")
    return low, middle, high


@dataclass(frozen=True)
class RankFigures:
    """A rank's summary as it was gathered."""

    quartiles: tuple[float, float, float]
    hidden: float
    sent: float
    loss: float
    weight: float
    parts: dict[Part, float]

    @classmethod
    def read(cls, row: Sequence[float]) -> RankFigures:
        """Read what `StepLog.summary` returned."""
        names = dict(zip(PARTS, row[7:], strict=True))
        return cls((row[0], row[1], row[2]), row[3], row[4], row[5], row[6], names)


def waited(tables: Sequence[Sequence[Sequence[float]]], rank: int) -> float:
    """Return how long a rank waited for the slowest in a mean step, from all ranks' `ready_table`s.

    An exchange cannot be done before the last rank has its gradients: until then this rank waited, at most for as
    long as its exchange took.
    """
    steps = [max(row[0] for row in together) for together in zip(*tables, strict=True)]
    mine = tables[rank]
    return statistics.fmean(min(max(0.0, last - at), took) for last, (at, took) in zip(steps, mine, strict=True))
