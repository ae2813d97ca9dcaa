"""What a run will need, by its spec (pure): the formula of its strategy, on what was measured of a lane."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lockstep.byte_sizes import read_bytes
from lockstep.errors import BadInput
from lockstep.fit.formulas import WHOLE_MODEL, FitWay
from lockstep.fit.stage_formulas import STAGED
from lockstep.lanes.schedule import check_lanes, check_stages
from lockstep.registry import describe
from lockstep.stages.actions import lane_order
from lockstep.stages.cuts import AUTO, read_cut

if TYPE_CHECKING:
    from lockstep.fit.lane_facts import LaneFacts
    from lockstep.fit.need import Need
    from lockstep.train.spec import RunSpec

SHM = (None, "shm")
"""Backends of workers that share memory; None: it is chosen where they can."""


def predict(facts: LaneFacts, spec: RunSpec) -> Need:
    """Return what the largest worker of a run will need; refuse a run that cannot be, or that has no formula."""
    description = describe(spec.strategy)
    if (reason := description.unavailable()) is not None:
        raise BadInput(reason)
    description.check_workers(spec.workers)
    if spec.strategy == "dp" and facts.device != "cpu":
        spec = replace(spec, strategy="ddp")  # threads with a device each hold there what processes would
    formula = WHOLE_MODEL.get(spec.strategy) or STAGED.get(spec.strategy)
    if formula is None:
        raise BadInput(f"there is no formula for strategy {spec.strategy}: run it, and read its peak memory")
    return formula(facts, _way(facts, spec))


def _way(facts: LaneFacts, spec: RunSpec) -> FitWay:
    staged = spec.strategy in STAGED
    if staged:
        check_stages(spec.workers, spec.stage_count)
    check_lanes(facts.lanes, spec.replicas, facts.global_batch)
    cut = None
    if staged and spec.cut != AUTO and not facts.uncut:
        cut = tuple(read_cut(spec.cut, [layer.name for layer in facts.layers], spec.stage_count))
    return FitWay(
        strategy=spec.strategy,
        workers=spec.workers,
        lanes=facts.lanes,
        stages=spec.stage_count if staged else 1,
        order=lane_order(spec.strategy, spec.pipeline_schedule) if staged else "",
        cut=cut,
        limit=None if spec.stage_memory is None else read_bytes(spec.stage_memory, "--stage-memory"),
        exact=spec.exact,
        arena=describe(spec.strategy).shares_memory and facts.device == "cpu" and spec.backend in SHM,
    )
