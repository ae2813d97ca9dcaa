"""Workers that are threads of one process, and a single worker."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch
from torch import Tensor

from lockstep.exchange.base import Exchange


class InProcess(Exchange):
    """Workers that are threads of one process; also a single worker."""

    class Common:
        """What the threads share."""

        def __init__(self, workers: int) -> None:
            self.barrier = threading.Barrier(workers)
            self.weights: list[Tensor] = []
            self.partials: dict[tuple[int, int], list[Tensor]] = {}
            self.numbers: list[Tensor] = [torch.empty(0)] * workers

    def __init__(self, lanes: int, workers: int = 1, rank: int = 0, common: Common | None = None) -> None:
        super().__init__(lanes, workers, rank)
        self._common = common or InProcess.Common(workers)
        self._made = 0
        self._weights = 0
        self._ids: dict[int, int] = {}

    def weights(self, numel: int, dtype: torch.dtype, device: str) -> Tensor:
        """Return the same tensor to every thread; rank 0 makes it."""
        if self.rank == 0:
            self._common.weights.append(torch.zeros(numel, dtype=dtype, device=device))
        self.barrier()
        self._weights += 1
        return self._common.weights[self._weights - 1]

    def partials(self, numel: int, dtype: torch.dtype, device: str) -> list[Tensor]:
        """Return own tensors, and let the others find them."""
        return self._publish([torch.zeros(numel, dtype=dtype, device=device) for _ in self.nodes])

    def barrier(self) -> None:
        """Wait for all threads."""
        if self.workers > 1:
            self._common.barrier.wait()

    def mean(self, partials: Sequence[Tensor], part: range, weight: float) -> Tensor:
        """Add up in place, see [Note: in place]."""
        made = self._ids[id(partials[0])]
        every = [one for rank in range(self.workers) for one in self._common.partials[made, rank]]
        return self._add_up([one[part.start : part.stop] for one in every], self._plan, weight)

    def whole_gradient(self, partials: Sequence[Tensor], reduced: Tensor) -> Tensor | None:
        """Let rank 0 update: the slices were added up in its first partial."""
        self.barrier()
        return partials[0] if self.rank == 0 else None

    def sum_disjoint(self, numbers: Tensor) -> Tensor:
        """Add up the threads' tables."""
        if self.workers == 1:
            return numbers
        self._common.numbers[self.rank] = numbers
        self.barrier()
        total = torch.stack(self._common.numbers).sum(0)
        self.barrier()
        return total

    def _publish(self, tensors: list[Tensor]) -> list[Tensor]:
        """Let the other threads find what this one made: all make the same, in the same order."""
        self._common.partials[self._made, self.rank] = tensors
        self._ids[id(tensors[0])] = self._made
        self._made += 1
        return tensors
