"""How much memory the largest worker needs where the model is cut (pure).

of a stage: its weights m, its gradients (p + s + w) m, its optimizer state, and of each lane in flight what its layers
keep for backward; of one lane also what forward and backward take on the way.

Every worker makes the plain model before it keeps its part, and the first one measures the layers on a whole lane.
Two sets of tensors come and go: gradients, and what passes between stages.
"""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.errors import BadInput
from lockstep.fit.formulas import (
    BUFFERS,
    GROUP,
    FitWay,
    Formula,
    largest_of,
    left_over,
    stock_base,
    worker_base,
    worker_data,
)
from lockstep.fit.lane_facts import LaneFacts
from lockstep.fit.need import Need
from lockstep.stages.cuts import Cost, best_cut, check_layers, check_memory, pieces, stage_ranges
from lockstep.stages.stage_memory import StageMemory


def chosen_cut(facts: LaneFacts, way: FitWay) -> list[int]:
    """Return where `--cut auto` would cut; refuse a model that cannot be cut so."""
    if facts.uncut:
        raise BadInput(facts.uncut)
    check_layers(pieces([Cost(0.0, joined=one.joined) for one in facts.layers]), way.stages)
    if way.cut is not None:
        return list(way.cut)
    folds = way.folds(lazy=facts.keeps_freed)
    share = facts.state / max(facts.weights, 1) / way.replicas
    memory = StageMemory(copies=1 + folds[0].total + share, order=way.order, lanes=way.own_lanes, limit=way.limit)
    costs = [
        Cost(one.seconds or 1.0 + one.weights, memory.copies * one.weights, one.keeps, one.joined)
        for one in facts.layers
    ]
    cut = best_cut(costs, way.stages, way.limit, memory.in_flight)
    if way.limit is not None:
        check_memory(costs, cut, way.stages, way.limit, memory.in_flight)
    assert cut is not None  # without a limit there is always one
    return cut


def staged_need(facts: LaneFacts, way: FitWay) -> Need:
    """`layers` and `pipeline`: the largest of all stages."""
    cut = chosen_cut(facts, way)
    memory = StageMemory(copies=0.0, order=way.order, lanes=way.own_lanes)
    parts = stage_ranges(cut, len(facts.layers))
    needs = [
        _stage_need(facts, way, stage, part, memory.in_flight(way.stages, stage)) for stage, part in enumerate(parts)
    ]
    return largest_of(needs, way.replicas * sum(need.total for need in needs))


def _stage_need(facts: LaneFacts, way: FitWay, stage: int, part: Sequence[int], in_flight: int) -> Need:
    weights = sum(facts.layers[layer].weights for layer in part)
    every = sum(layer.keeps for layer in facts.layers)
    share = sum(facts.layers[layer].keeps for layer in part) / every if every else 1.0
    folds = way.folds(lazy=facts.keeps_freed)
    partials, fold = sum(one.partials for one in folds), max(folds, key=lambda one: one.total)
    state = facts.state * weights // max(facts.weights, 1) // (way.replicas if facts.sliced else 1)
    activations = round(facts.kept * share) * in_flight + max(0, facts.lane - facts.kept)
    passed = facts.layers[part[0] - 1].passes if stage else 0
    passed += facts.layers[part[-1]].passes if stage < way.stages - 1 else 0
    gradients = fold.total * weights
    shares = way.arena and way.replicas > 1
    private = gradients + state + activations + weights - ((1 + fold.partials) * weights if shares else 0)
    made = facts.weights + (facts.lane if stage == 0 else 0)
    return Need(
        base=worker_base(facts),
        data=worker_data(facts, way.own_lanes),
        weights=weights + facts.frozen + BUFFERS * facts.buffers,
        gradients=gradients,
        optimizer=state,
        activations=activations,
        exchange=GROUP + passed + ((partials - fold.partials) * weights // way.replicas if shares else 0),
        freed=left_over(facts, made, private, elsewhere=made, sets=2),
    )


def torch_pipeline_need(facts: LaneFacts, way: FitWay) -> Need:
    """`torch-pipeline`: the same cut, with one gradient of each weight in place of sums over lanes."""
    ours = staged_need(facts, way)
    need = Need(**{**ours.parts(), "base": stock_base(facts), "gradients": ours.weights})
    return largest_of([need], way.workers * need.total)


STAGED: dict[str, Formula] = {
    "layers": staged_need,
    "pipeline": staged_need,
    "torch-pipeline": torch_pipeline_need,
}
"""Of the strategies that cut the model."""
