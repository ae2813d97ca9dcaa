"""What each stage of a model that is cut did in the recorded steps: forward and backward of every lane, in time.

Ranks of one host share a clock. Hosts do not: the ranks of another host than rank 0's are moved so that its ranks and
rank 0's leave the meeting at the end of a step at the same time, since all of them leave it together.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lockstep.report.collect import FinishedRun, Span, spans


@dataclass(frozen=True, kw_only=True)
class LaneAction:
    """One lane's forward or backward on one stage."""

    rank: int
    """Whose."""
    stage: int
    """Its part of the model."""
    replica: int
    """Its copy of the model."""
    step: int
    """In which step."""
    lane: int
    """Of the global batch."""
    forward: bool
    """Else backward."""
    start: float
    """Seconds since the epoch, by the clock of rank 0's host."""
    end: float
    """The same; passing on what it made is part of it."""
    passing: float = 0.0
    """Seconds that passing on took."""
    weights: bool = False
    """Of a backward in two halves: the second."""

    @property
    def seconds(self) -> float:
        """How long it computed."""
        return self.end - self.start - self.passing


def lane_actions(run: FinishedRun) -> tuple[LaneAction, ...]:
    """Return the actions of every rank in the order of its time; none if the model was not cut."""
    by_rank: dict[int, list[Span]] = defaultdict(list)
    for span in stage_spans(run):
        by_rank[span.rank].append(span)
    actions: list[LaneAction] = []
    for figures in run.result.ranks:
        first = len(actions)
        backward: set[tuple[int, int]] = set()
        for span in by_rank[figures.rank]:
            if span.lane is None or span.name == "wait":
                continue
            last = actions[-1] if len(actions) > first else None
            if last is not None and _goes_on(last, span):
                passing = last.passing + (span.seconds if span.name == "exchange" else 0.0)
                actions[-1] = replace(last, end=span.start + span.seconds, passing=passing)
            elif span.name in ("forward", "backward"):
                begun = _begun(span, figures.stage, figures.replica)
                actions.append(replace(begun, weights=(span.step, span.lane) in backward))
                if not begun.forward:
                    backward.add((span.step, span.lane))
    return tuple(actions)


def _goes_on(last: LaneAction, span: Span) -> bool:
    """Say whether a span is a further part of an action: passing on, or what follows it."""
    if (last.step, last.lane) != (span.step, span.lane):
        return False
    return span.name == "exchange" or last.forward == (span.name == "forward")


def _begun(span: Span, stage: int, replica: int) -> LaneAction:
    assert span.lane is not None
    return LaneAction(
        rank=span.rank,
        stage=stage,
        replica=replica,
        step=span.step,
        lane=span.lane,
        forward=span.name == "forward",
        start=span.start,
        end=span.start + span.seconds,
    )


def stage_spans(run: FinishedRun) -> tuple[Span, ...]:
    """Return the recorded spans of a run whose model was cut, on one clock; none of another run."""
    recorded = spans(run)
    if all(span.lane is None for span in recorded):
        return ()
    late = clock_differences(run.hosts, meetings(recorded))
    return tuple(replace(span, start=span.start - late.get(span.rank, 0.0)) for span in recorded)


def meetings(recorded: Sequence[Span]) -> dict[tuple[int, int], float]:
    """Return when each rank left the meeting that a step has on record, by rank and step.

    That is a wait for no lane, after what is of no lane either: the wait of a stage's replicas comes after a lane. On
    accelerators a step has the meeting of the step before, see strategies/device_clock.py.
    """
    left: dict[tuple[int, int], float] = {}
    before: Span | None = None
    for span in recorded:
        place = span.rank, span.step
        if span.lane is None and span.name == "wait":
            follows = before is not None and (before.rank, before.step, before.lane) == (*place, None)
            if follows or place not in left:
                left[place] = span.start + span.seconds
        before = span
    return left


def clock_differences(hosts: Sequence[str], left: Mapping[tuple[int, int], float]) -> dict[int, float]:
    """Return by how much the clock of each rank's host is ahead of that of rank 0's host."""
    if len(set(hosts)) < 2:
        return {}
    ahead: dict[str, list[float]] = defaultdict(list)
    for (rank, step), when in left.items():
        if (0, step) in left and rank < len(hosts):
            ahead[hosts[rank]].append(when - left[0, step])
    middle = {host: 0.0 if host == hosts[0] else statistics.median(values) for host, values in ahead.items()}
    return {rank: middle.get(host, 0.0) for rank, host in enumerate(hosts)}
