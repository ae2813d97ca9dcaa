"""The memory that each way of a comparison is predicted to need: one lane is measured before the first run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from lockstep.errors import BadInput
from lockstep.fit.apart import measured_apart
from lockstep.fit.predicting import predict

if TYPE_CHECKING:
    from lockstep.fit.lane_facts import LaneFacts
    from lockstep.train.schema.plan_json import Way
    from lockstep.train.spec import RunSpec


def with_predictions(ways: Sequence[Way]) -> tuple[Way, ...]:
    """Return the ways with what their largest worker will need, where that can be told; their runs say why if not."""
    measured: dict[int | None, LaneFacts | None] = {}
    predicted = []
    for way in ways:
        if not way.spec.measure:
            predicted.append(way)
            continue
        lanes = way.spec.lanes
        if lanes not in measured:
            measured[lanes] = _facts(way.spec)
        memory = _memory(measured[lanes], way.spec)
        predicted.append(msgspec.structs.replace(way, spec=replace(way.spec, predicted_memory=memory)))
    return tuple(predicted)


def _facts(spec: RunSpec) -> LaneFacts | None:
    try:
        return measured_apart(spec)
    except BadInput:
        return None


def _memory(facts: LaneFacts | None, spec: RunSpec) -> int | None:
    if facts is None:
        return None
    try:
        return predict(facts, spec).total
    except BadInput:
        return None
