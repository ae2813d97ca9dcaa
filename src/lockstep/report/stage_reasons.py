"""Why a model that is cut takes as long as it does: one stage longer than the others, too few lanes, or passing on.

The bubble has three sources, and the largest one speaks; where none is large alone, all are told. With the recorded
lanes they are told apart by numbers:

    too few lanes   the bubble of theory: all stages equally long, nothing to pass on
    imbalance       what the stages' measured times add to it
    transfer        what was measured beyond that, and the time of passing on
"""

from __future__ import annotations

import statistics

from lockstep.report.bubbles import Bubble
from lockstep.report.rows import Row
from lockstep.report.units import plural
from lockstep.stages.actions import ORDERS, ZERO_BUBBLE, bubble

LONGER = 1.25
"""A stage that computes so many times as long as the others is what they wait for."""
BUBBLE = 0.16
"""A pipeline that waits for a larger share of a step has too few lanes."""
PASSING = 0.15
"""A share of a step that goes into passing on, from which it is worth a sentence."""
WORTH = 0.10
"""A bubble from which it is worth a sentence."""
TIMES = (1, 2, 4, 8, 16)
"""How many times the lanes may be advised."""


def stage_reason(row: Row, *, pipeline: str, exchange: float) -> str | None:
    """Return the sentence for a row whose model was cut; None if its stages explain nothing.

    `pipeline` tells what this comparison measured of it, `exchange` the share of a step that is spent exchanging.
    """
    stages = len({rank.stage for rank in row.ranks})
    if stages < 2 or not row.lanes:
        return None
    if row.strategy == "layers":
        waits = f", and a worker waits {row.bubble.measured:.0%} of the time" if row.bubble else ""
        return f"one of {stages} stages computes at a time{waits}; pipeline streams the lanes{pipeline}"
    theory = bubble(_order(row), stages, _replica_lanes(row, stages))
    reasons = [
        (row.bubble.uneven - row.bubble.theory if row.bubble else 1.0, _imbalance(row)),
        (theory, _few_lanes(row, stages)),
        (_transfer_share(row.bubble, exchange), _transfer(row, exchange)),
    ]
    told = [(weight, sentence) for weight, sentence in reasons if sentence]
    return max(told, key=lambda reason: reason[0])[1] if told else _several(row.bubble)


def _several(one: Bubble | None) -> str | None:
    """Return what a bubble is made of where no single source is large; None if it is small."""
    if one is None or one.measured < WORTH:
        return None
    uneven = max(0.0, one.uneven - one.theory)
    return (
        f"a worker waits {one.measured:.0%} of the time: {one.theory:.0%} for the first and the last lanes, "
        f"{uneven:.0%} since stages take unequally long, {_late(one):.0%} for what is on its way; try "
        "more --lanes, or another --cut"
    )


def _imbalance(row: Row) -> str | None:
    by_stage: dict[int, list[float]] = {}
    for rank in row.ranks:
        by_stage.setdefault(rank.stage, []).append(rank.own_seconds)
    busy = {stage: statistics.fmean(seconds) for stage, seconds in by_stage.items()}
    longest = max(busy, key=lambda stage: busy[stage])
    others = statistics.fmean(seconds for stage, seconds in busy.items() if stage != longest)
    if busy[longest] <= LONGER * others or not others:
        return None
    cost = ""
    if row.bubble:
        cost = f" (bubble {row.bubble.measured:.0%}; of equal stages {row.bubble.theory:.0%})"
    return (
        f"stage {longest} computes {busy[longest] / others:.1f} times as long as the others, which wait for it{cost}: "
        "cut the model elsewhere (--cut, or smaller layers in Recipe(stages=...))"
    )


def _few_lanes(row: Row, stages: int) -> str | None:
    lanes = _replica_lanes(row, stages)
    allowed = [times for times in TIMES if times * row.lanes <= (row.global_batch or times * row.lanes)] or [1]
    shares = {times: bubble(_order(row), stages, times * lanes) for times in allowed}
    if shares[1] <= BUBBLE:
        return None
    measured = f" (measured {row.bubble.measured:.0%})" if row.bubble else ""
    few = f"{plural(lanes, 'lane')} on {stages} stages: bubble {shares[1]:.0%}{measured}"
    halves = ""
    if row.strategy == "pipeline" and _order(row) != ZERO_BUBBLE:
        halves = f"; --pipeline-schedule zero-bubble has {bubble(ZERO_BUBBLE, stages, lanes):.0%}"
    if len(allowed) == 1:
        return f"{few}; a global batch of {row.global_batch} has no room for twice the lanes: make it larger{halves}"
    more = next((times for times, share in shares.items() if share <= BUBBLE), allowed[-1])
    return (
        f"{few}, with {more * lanes} lanes {shares[more]:.0%}: --lanes {more * row.lanes}, if a lane stays large "
        f"enough to compute well{halves}"
    )


def _transfer(row: Row, exchange: float) -> str | None:
    if _transfer_share(row.bubble, exchange) < PASSING:
        return None
    advice = "cut the model where less is passed (--cut), or make lanes larger (fewer --lanes)"
    if row.bubble is None:
        return f"spends {exchange:.0%} of the step passing activations on: {advice}"
    one = row.bubble
    computes = max(0.0, 1.0 - one.measured - one.passing)
    return (
        f"computes {computes:.0%} of the time, passes activations and gradients on for {one.passing:.0%} and waits "
        f"{_late(one):.0%} more for them than its stages' times explain: {advice}"
    )


def _transfer_share(one: Bubble | None, exchange: float) -> float:
    return exchange if one is None else one.passing + _late(one)


def _late(one: Bubble) -> float:
    """Return the share of time for which stages waited though the stage before could have been ready."""
    return max(0.0, one.measured - one.uneven)


def _order(row: Row) -> str:
    """Return the order of a pipeline's lanes; of one that recorded none, the default."""
    return row.bubble.order if row.bubble else ORDERS[0]


def _replica_lanes(row: Row, stages: int) -> int:
    return -(-row.lanes * stages // row.workers)
