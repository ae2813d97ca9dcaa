"""The weights of one block on one worker: its own slices always, all of them while the block is here.

[Note: present and absent]
What autograd saves of a weight is often a view of it, so a block keeps its flat tensors for good, and only their memory
comes and goes. An absent weight has its shape, for autograd and everybody who asks for it, and one element, which is
no number: who uses it at the wrong time gets a loss that is no number, not memory that is gone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from lockstep.lanes.flat_layout import Section


class BlockWeights:
    """The sections of one block, by their numbers."""

    def __init__(
        self,
        sections: Mapping[int, Section],
        parameters: Sequence[nn.Parameter],
        *,
        workers: int,
        rank: int,
        agree: Callable[[Tensor], None],
    ) -> None:
        """Take over the parameters' values; `agree` makes rank 0's everybody's."""
        self.sections = dict(sections)
        self.flats: dict[int, Tensor] = {}
        self.slices: dict[int, Tensor] = {}
        """What this worker updates."""
        self.parts = {
            number: [section.part(workers, peer) for peer in range(workers)] for number, section in sections.items()
        }
        self._rank = rank
        self._views: list[tuple[nn.Parameter, Tensor]] = []
        for number, section in sections.items():
            first = parameters[section.slots[0].index]
            flat = torch.zeros(section.numel, dtype=first.dtype, device=first.device)
            for slot in section.slots:
                view = flat[slot.start : slot.stop].view(slot.shape)
                view.copy_(parameters[slot.index].detach())
                self._views.append((parameters[slot.index], view))
            agree(flat)
            self.flats[number] = flat
            self.slices[number] = flat[self._own(number)].clone()
        self._absent = [
            torch.full((), math.nan, dtype=view.dtype, device=view.device).expand(view.shape) for _, view in self._views
        ]
        self.drop()

    @property
    def indices(self) -> list[int]:
        """The parameters, by their positions."""
        return [slot.index for section in self.sections.values() for slot in section.slots]

    def make_room(self) -> None:
        """Get memory for all weights where there is none, and put the own ones there."""
        for number, flat in self.flats.items():
            storage = flat.untyped_storage()
            if storage.nbytes() == 0:
                storage.resize_(flat.numel() * flat.element_size())
            flat[self._own(number)].copy_(self.slices[number])

    def drop(self) -> None:
        """Give the memory back, see [Note: present and absent]."""
        for (parameter, _), absent in zip(self._views, self._absent, strict=True):
            parameter.data = absent
        for flat in self.flats.values():
            flat.untyped_storage().resize_(0)

    def show(self) -> None:
        """Let the parameters be the weights that are here."""
        for parameter, view in self._views:
            parameter.data = view

    def put(self, number: int, first: int, values: Tensor) -> None:
        """Keep what is this worker's of some elements of a section, of which the first is given."""
        own = self.parts[number][self._rank]
        low, high = max(first, own.start), min(first + values.numel(), own.stop)
        if low < high:
            self.slices[number][low - own.start : high - own.start].copy_(values[low - first : high - first])

    def _own(self, number: int) -> slice:
        part = self.parts[number][self._rank]
        return slice(part.start, part.stop)
