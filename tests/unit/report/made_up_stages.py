"""Runs of a model that is cut, made up for tests: the times of every action are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from msgspec import structs

from lockstep.report.collect import FinishedRun
from lockstep.stages.actions import Action, in_halves, lane_order, stage_actions
from lockstep.strategies.clock import PARTS, Span
from lockstep.train.schema.rank_jsonl import StepLine
from tests.unit.report.causes import run
from tests.unit.report.values import BEGAN

RECORDED = range(3, 8)
UPDATE = 2e-3
EQUAL = ((10e-3, 20e-3), (10e-3, 20e-3))


def stage_run(
    strategy: str = "pipeline",
    seconds: Sequence[tuple[float, float]] = EQUAL,
    *,
    lanes: int = 4,
    replicas: int = 1,
    passing: float = 0.0,
    on_its_way: float = 0.0,
    schedule: str = "1f1b",
    hosts: Sequence[str] = (),
    ahead: Sequence[float] = (),
    expected: float | None = 0.25,
) -> FinishedRun:
    """Return a run whose stages take so long for a lane's forward and backward, and for passing on.

    What is passed on arrives a while later, while the one that passed it does something else.
    Replica r has every lane l with l % replicas == r. The clock of rank n is ahead by so much.
    """
    stages, own = len(seconds), lanes // replicas
    order = lane_order(strategy, schedule)
    spans = [
        [_named(one, [lane for lane in range(lanes) if lane % replicas == replica]) for one in stage]
        for replica in range(replicas)
        for stage in spans_of(order, seconds, own, passing, on_its_way)
    ]
    parts = [{part: sum(one[2] for one in rank if one[0] == part) for part in PARTS} for rank in spans]
    made = run(strategy, len(spans), ranks=parts, lanes=lanes, cpus=64, losses=[3.0] * 9, expected_bubble=expected)
    ranks = tuple(
        structs.replace(figures, replica=rank // stages, stage=rank % stages)
        for rank, figures in enumerate(made.result.ranks)
    )
    spec = replace(made.setup.spec, stages=stages, pipeline_schedule=schedule)
    return replace(
        made,
        setup=structs.replace(made.setup, spec=spec),
        result=structs.replace(made.result, ranks=ranks),
        steps=tuple(
            tuple(_line(line, rank, ahead[place] if ahead else 0.0) for line in lines)
            for place, (lines, rank) in enumerate(zip(made.steps, spans, strict=True))
        ),
        hosts=tuple(hosts) or ("host-a",) * len(spans),
    )


def spans_of(
    order: str, seconds: Sequence[tuple[float, float]], lanes: int, passing: float, on_its_way: float
) -> list[list[Span]]:
    """Return what each stage does and waits for in a step: each updates after its last lane, then all meet."""
    stages = len(seconds)
    queues = [stage_actions(order, stages, stage, lanes) for stage in range(stages)]
    halves = list(map(in_halves, queues))
    made: list[list[Span]] = [[("data", 0.0, 1e-3, None)] for _ in queues]
    free, came = [1e-3] * stages, dict[tuple[int, Action], float]()
    while any(queues):
        for stage, queue in enumerate(queues):
            while queue and _ready(queue[0], stage, stages, came):
                action = queue.pop(0)
                source, target = (stage - 1, stage + 1) if action.forward else (stage + 1, stage - 1)
                start = free[stage] if action.weights else max(free[stage], came.get((source, action), 0.0))
                took = seconds[stage][0 if action.forward else 1]
                if not action.forward and action.lane in halves[stage]:
                    took /= 2
                sends = passing if 0 <= target < stages and not action.weights else 0.0
                part = "forward" if action.forward else "backward"
                made[stage].append(("wait", free[stage], start - free[stage], action.lane))
                made[stage].append((part, start, took, action.lane))
                made[stage].append(("exchange", start + took, sends, action.lane))
                free[stage] = start + took + sends
                came[stage, action] = free[stage] + on_its_way
    end = max(free)
    for done, own in zip(free, made, strict=True):
        own += [("optimizer", done, UPDATE, None), ("wait", done + UPDATE, end - done, None)]
    return made


def _ready(action: Action, stage: int, stages: int, came: dict[tuple[int, Action], float]) -> bool:
    source = stage - 1 if action.forward else stage + 1
    return action.weights or not 0 <= source < stages or (source, action) in came


def _named(span: Span, lanes: Sequence[int]) -> Span:
    part, start, length, lane = span
    return (part, start, length, None if lane is None else lanes[lane])


def _line(line: StepLine, spans: Sequence[Span], ahead: float) -> StepLine:
    whole = max(start + length for _, start, length, _ in spans)
    changes: dict[str, Any] = {"began": BEGAN + line.step * whole + ahead, "total": whole}
    if line.step in RECORDED:
        changes["spans"] = tuple((part, start, length) for part, start, length, _ in spans)
        changes["span_lanes"] = tuple(lane for *_, lane in spans)
    return structs.replace(line, **changes)
