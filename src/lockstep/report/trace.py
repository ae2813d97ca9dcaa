"""The recorded spans as a trace file that Perfetto and Chrome open: a process for each run, a thread for each rank.

The format is the JSON trace event format: `X` is a complete event, `M` names or orders a process or thread; times are
in microseconds, and whole nanoseconds, because Perfetto keeps no more. What Perfetto asks beyond the format:

    events of one thread do not overlap, or the later one is dropped: each ends where the next begins at the latest
    threads of all processes have numbers of their own, none is 0, and the first of a process has the process's number

Where a model is cut, an event also tells its lane, and a thread its stage: the bubble is what its waits add up to.

Clocks of different hosts are not the same: ranks of one host can be compared to the microsecond, ranks of two hosts
only as well as their clocks agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from lockstep.report.collect import Run, Span, spans
from lockstep.train.schema.result_json import Done

if TYPE_CHECKING:
    from lockstep.report.compare import Comparison

STRIDE = 10_000
"""Between the numbers of two processes: more than a run has ranks."""


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="ph"):
    """Any event of the format."""

    name: str
    pid: int
    tid: int


class Complete(Event, frozen=True, kw_only=True, tag="X"):
    """A stretch of time; in microseconds."""

    cat: str = "step"
    ts: float
    dur: float
    args: dict[str, int]


class Metadata(Event, frozen=True, kw_only=True, tag="M"):
    """The name or the place of a process or thread."""

    args: dict[str, str | int]


class Trace(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The whole file."""

    display_time_unit: str = "ms"
    trace_events: list[Complete | Metadata]
    other_data: dict[str, str]


def trace(comparison: Comparison) -> Trace:
    """Return the trace of every run that recorded spans, each from its own time zero."""
    events: list[Complete | Metadata] = []
    process = 0
    for name, runs in comparison.runs.items():
        for repeat, run in enumerate(runs, start=1):
            process += STRIDE
            label = f"{name}, run {repeat}" if len(runs) > 1 else name
            events += _events(process, label, run)
    return Trace(trace_events=events, other_data={"title": comparison.title})


def _events(process: int, label: str, run: Run) -> list[Complete | Metadata]:
    recorded = spans(run)
    if not recorded:
        return []
    zero = min(span.start for span in recorded)
    cut = any(span.lane is not None for span in recorded)
    stages = {rank.rank: rank.stage for rank in run.result.ranks} if cut and isinstance(run.result, Done) else {}
    events: list[Complete | Metadata] = [
        _about("process_name", process, process, name=label),
        _about("process_sort_index", process, process, sort_index=process),
    ]
    for rank in sorted({span.rank for span in recorded}):
        host = run.hosts[rank] if rank < len(run.hosts) else ""
        thread = process + rank
        name = f"rank {rank}{f', stage {stages[rank]}' if rank in stages else ''}{f' on {host}' if host else ''}"
        events.append(_about("thread_name", process, thread, name=name))
        events.append(_about("thread_sort_index", process, thread, sort_index=rank))
        events += _strip(process, thread, zero, sorted(_of(rank, recorded), key=lambda span: span.start))
    return events


def _of(rank: int, recorded: Sequence[Span]) -> list[Span]:
    return [span for span in recorded if span.rank == rank]


def _strip(process: int, thread: int, zero: float, own: Sequence[Span]) -> list[Complete]:
    """Return the events of one rank, in time order; seconds since 1970 are only good to a quarter of a microsecond."""
    starts = [round((span.start - zero) * 1e9) for span in own]
    ends = [start + round(span.seconds * 1e9) for start, span in zip(starts, own, strict=True)]
    ends = [min(end, after) for end, (_, after) in zip(ends, pairwise([*starts, ends[-1]]), strict=True)]
    return [
        Complete(
            name=span.name if span.lane is None else f"{span.name}, lane {span.lane}",
            pid=process,
            tid=thread,
            ts=start / 1000,
            dur=(end - start) / 1000,
            args={"step": span.step} | ({} if span.lane is None else {"lane": span.lane}),
        )
        for span, start, end in zip(own, starts, ends, strict=True)
    ]


def _about(kind: str, process: int, thread: int, **args: str | int) -> Metadata:
    return Metadata(name=kind, pid=process, tid=thread, args=args)
