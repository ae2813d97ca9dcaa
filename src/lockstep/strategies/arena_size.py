"""How much memory the workers of a host share: one copy of the weights, all partials, and what goes between hosts."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lockstep.comm.arena import Arena
from lockstep.comm.segment_layout import PAGE
from lockstep.exchange.base import Exchange
from lockstep.exchange.host_traffic import Signals
from lockstep.lanes.flat_layout import BLOCK
from lockstep.strategies.base import Training


def arena_bytes(training: Training, workers: int, here: Sequence[int] | None = None) -> int:
    """Return how much memory the workers of a host (all of them, if not `here`) must share for this model."""
    held = Exchange.held(training.units, workers)
    copies = 1 + sum(len(held[rank]) for rank in (range(workers) if here is None else here))
    tensors = [*training.model.parameters(), *training.model.buffers()]
    # Every tensor could have a section of its own: a generous bound, of which only what is used is ever touched. Other
    # buffers than floats are numbers of eight bytes.
    sizes = [tensor.numel() * (tensor.element_size() if tensor.is_floating_point() else 8) for tensor in tensors]
    room = sum(size + 8 * BLOCK * (workers + 1) + PAGE for size in sizes)
    losses = Arena.room(2 * training.lanes, torch.float64)
    return copies * room + losses + Signals.room(len(tensors), workers) + 2 * PAGE
