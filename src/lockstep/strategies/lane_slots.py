"""A worker's lanes, in the order in which they are folded, and the memory of each fold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lockstep.exchange.base import Exchange
from lockstep.lanes.schedule import owned_lanes
from lockstep.lanes.tree import Fold, folding, running_sum
from lockstep.strategies.base import Training
from lockstep.strategies.merging import lazy_zeros


class LaneSlot(NamedTuple):
    """One of this worker's lanes, and where its gradients and float buffers are folded."""

    lane: int
    fold: Fold
    gradients: list[tuple[Tensor, ...]]
    """The buffers of the fold, each with one flat tensor per section."""
    means: list[list[Tensor]]
    """Per section of the float buffers, the buffers of the fold."""


def lane_slots(
    training: Training,
    exchange: Exchange,
    partials: Sequence[Sequence[Tensor]],
    buffer_partials: Sequence[Sequence[Tensor]],
) -> list[LaneSlot]:
    """Return this worker's lanes; the partials, of each section of gradients and of float buffers, take their sums."""
    if training.exact:
        lanes = [range(node.lo, node.hi) for node in exchange.nodes]
        plans = [folding(node) for node in exchange.nodes]
    else:
        lanes = [owned_lanes(training.lanes, exchange.workers, exchange.rank)]
        plans = [running_sum(len(lanes[0]))]
    spare = max(buffers for _, buffers in plans) - 1
    scratch = [[lazy_zeros(p[0]) for _ in range(spare)] for p in partials]
    # zeros: the gaps between tensors are added with the rest, and must stay zero
    mean_scratch = [[torch.zeros_like(p[0]) for _ in range(spare)] for p in buffer_partials]
    slots = []
    for position, (own, (folds, _)) in enumerate(zip(lanes, plans, strict=True)):
        sums = [[p[position], *more] for p, more in zip(partials, scratch, strict=True)]
        gradients = [tuple(buffers[number] for buffers in sums) for number in range(1 + spare)]
        means = [[p[position], *more] for p, more in zip(buffer_partials, mean_scratch, strict=True)]
        slots += [LaneSlot(lane, fold, gradients, means) for lane, fold in zip(own, folds, strict=True)]
    return slots
