"""The recorded spans as a trace file that Perfetto and Chrome open: a process for each run, a thread for each rank.

The format is the JSON trace event format: `X` is a complete event, `M` names a process or thread; times are in
microseconds. Clocks of different hosts are not the same: ranks of one host can be compared to the microsecond, ranks of
two hosts only as well as their clocks agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lockstep.report.collect import Run, spans

if TYPE_CHECKING:
    from lockstep.report.compare import Comparison


def trace(comparison: Comparison) -> dict[str, Any]:
    """Return the trace of every run that recorded spans, each from its own time zero."""
    events: list[dict[str, Any]] = []
    process = 0
    for name, runs in comparison.runs.items():
        for repeat, run in enumerate(runs, start=1):
            process += 1
            label = f"{name}, run {repeat}" if len(runs) > 1 else name
            events += _events(process, label, run)
    return {"displayTimeUnit": "ms", "traceEvents": events, "otherData": {"title": comparison.title}}


def _events(process: int, label: str, run: Run) -> Sequence[dict[str, Any]]:
    found = spans(run)
    if not found:
        return []
    zero = min(span.start for span in found)
    named = [_name("process_name", process, 0, label)]
    for rank in sorted({span.rank for span in found}):
        host = run.hosts[rank] if rank < len(run.hosts) else ""
        named.append(_name("thread_name", process, rank, f"rank {rank}{f' on {host}' if host else ''}"))
    return named + [
        {
            "ph": "X",
            "name": span.name,
            "cat": "step",
            "pid": process,
            "tid": span.rank,
            "ts": round((span.start - zero) * 1e6, 3),
            "dur": round(span.seconds * 1e6, 3),
            "args": {"step": span.step},
        }
        for span in found
    ]


def _name(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}
