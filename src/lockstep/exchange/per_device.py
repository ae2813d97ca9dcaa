"""Threads of one process with a device each: own weights and partials, and copies between the devices.

    1. every thread has its partials, and all have met (`sum_disjoint`)
    2. thread r copies slice r of the others' partials to its device, and adds them up in tree order (`mean`)
    3. thread r updates slice r of its weights
    4. all meet, and everyone copies the slices of the others (`gather_weights`)

Torch orders a copy between two devices after the work that both were given before, and nobody writes to a partial or to
another's slice between two meetings. So threads wait for each other, and the host for no device but in 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lockstep.exchange.in_process import InProcess


class PerDevice(InProcess):
    """Workers that are threads of one process, each with a device of its own."""

    shares_memory = False
    name = "copies between the devices of one process"

    def weights(self, numel: int, dtype: torch.dtype, device: str) -> Tensor:
        """Return this thread's own buffer, and let the others find it."""
        return self._publish([torch.zeros(numel, dtype=dtype, device=device)])[0]

    def broadcast_weights(self, flat: Tensor) -> None:
        """Rank 0 wins."""
        self.barrier()
        if self.rank:
            flat.copy_(self._of_all(flat)[0])
        self.barrier()

    def mean(self, partials: Sequence[Tensor], part: range, weight: float) -> Tensor:
        """Copy the others' slices, then add up."""
        made = self._ids[id(partials[0])]
        every = [one for rank in range(self.workers) for one in self._common.partials[made, rank]]
        here = partials[0].device
        return self._add_up([one[part.start : part.stop].to(here) for one in every], self._plan, weight)

    def whole_gradient(self, partials: Sequence[Tensor], reduced: Tensor) -> Tensor | None:
        """Gather the slices: every thread has weights of its own to update."""
        self._common.numbers[self.rank] = reduced
        self.barrier()
        flat = torch.empty_like(partials[0])
        for own, theirs in zip(torch.split(flat, reduced.numel()), self._common.numbers, strict=True):
            own.copy_(theirs)
        self.barrier()
        return flat

    def sum_disjoint(self, numbers: Tensor) -> Tensor:
        """Add up the threads' tables on the host, which reads them anyway."""
        return super().sum_disjoint(numbers.cpu())

    def gather_weights(self, flat: Tensor) -> None:
        """Copy the slices that the others updated."""
        self.barrier()
        length = flat.numel() // self.workers
        for rank, theirs in enumerate(self._of_all(flat)):
            if rank != self.rank:
                own = slice(rank * length, (rank + 1) * length)
                flat[own].copy_(theirs[own])

    def _of_all(self, flat: Tensor) -> list[Tensor]:
        """Return what each thread has in the place of this tensor."""
        made = self._ids[id(flat)]
        return [self._common.partials[made, rank][0] for rank in range(self.workers)]
