"""The norm of a gradient that is in pieces: by blocks that are counted within each tensor, see [Note: blocks]."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from lockstep.lanes.flat_layout import BLOCK, slots_within, tensor_blocks
from lockstep.strategies.flat_model import ModelLayout
from lockstep.strategies.sliced_optimizer import GradientRun


class BlockNorms:
    """Squares the norm of each block of a model's gradient, as far as a worker has it."""

    def __init__(self, layout: ModelLayout, device: str) -> None:
        self._sections, self._device = layout.sections, device
        counts = (tensor_blocks(parameter.numel()) for parameter in layout.parameters)
        self._first = list(itertools.accumulate(counts, initial=0))
        """Of each tensor, among the blocks of all; then how many there are."""

    def squares(self, reduced: Sequence[GradientRun]) -> Tensor:
        """Return a number for each block of the model; 0 for those that are not in these runs."""
        squares = torch.zeros(self._first[-1], dtype=torch.float64, device=self._device)
        for run in reduced:
            for slot in slots_within(self._sections[run.section].slots, run.start, run.stop):
                low, high = max(slot.start, run.start), min(slot.stop, run.stop)
                if low < high:
                    norms = block_norms(run.values[low - run.start : high - run.start])
                    first = self._first[slot.index] + (low - slot.start) // BLOCK
                    squares[first : first + len(norms)] = norms.double().square()
        return squares


def block_norms(gradient: Tensor) -> Tensor:
    """Return the norm of each block of a tensor's gradient, or of a run of its blocks."""
    full = gradient.numel() // BLOCK * BLOCK
    norms: Tensor = torch.linalg.vector_norm(gradient[:full].view(-1, BLOCK), dim=1)
    if full == gradient.numel():
        return norms
    return torch.cat([norms, torch.linalg.vector_norm(gradient[full:]).view(1)])
