"""Workers that are processes of one host, over its arena."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep.comm.arena import Arena
from lockstep.exchange.base import Exchange


class SharedArena(Exchange):
    """Workers that are processes of one host: one copy of the weights, nothing copied in or out."""

    name = "arena"

    def __init__(self, arena: Arena, lanes: int) -> None:
        super().__init__(lanes, arena.size, arena.rank)
        self._arena = arena
        self._made: dict[int, list[Tensor]] = {}

    def weights(self, numel: int, dtype: torch.dtype, device: str) -> Tensor:
        """Return the host's one buffer."""
        return self._arena.shared(numel, dtype)

    def partials(self, numel: int, dtype: torch.dtype, device: str) -> list[Tensor]:
        """Return own buffers in the arena."""
        every = [[self._arena.shared(numel, dtype) for _ in range(count)] for count in self._counts]
        mine = every[self.rank]
        self._made[id(mine[0])] = [one for row in every for one in row]
        return mine

    def barrier(self) -> None:
        """Wait for all ranks of the host."""
        self._arena.barrier()

    def mean(self, partials: Sequence[Tensor], part: range, weight: float) -> Tensor:
        """Add up in place, see [Note: in place]."""
        every = self._made[id(partials[0])]
        return self._add_up([one[part.start : part.stop] for one in every], self._plan, weight)

    def whole_gradient(self, partials: Sequence[Tensor], reduced: Tensor) -> Tensor | None:
        """Let rank 0 update: the slices were added up in its first partial."""
        self.barrier()
        return partials[0] if self.rank == 0 else None

    def sum_disjoint(self, numbers: Tensor) -> Tensor:
        """Add up through the backend: small messages take microseconds there."""
        dist.all_reduce(numbers, group=self._arena.group)
        return numbers
