"""Flat buffers that all ranks of a host share: they are reduced without a copy in or out.

    shared(n)    | weights ................................ |   one buffer, seen by all ranks
    per_rank(n)  | gradients of rank 0 | of rank 1 | ...    |   one buffer for each rank, all of them seen by all ranks

A step of training:

    1 every rank writes its own gradients
    2 barrier
    3 rank r reads slice r of every rank's gradients in tree order, and updates slice r of the weights
    4 barrier
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from lockstep.comm import rank_tree
from lockstep.comm.combine import Combiner
from lockstep.comm.segment import mib
from lockstep.comm.segment_layout import ALIGN, PAGE, TOKEN_BYTES
from lockstep.comm.shm import ShmGroup
from lockstep.comm.wire import OPS
from lockstep.errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor


def owned_slice(numel: int, size: int, rank: int) -> range:
    """Return the elements that a rank reduces: whole cache lines, in rank order, slices as equal as that allows."""
    lines = -(-numel // ALIGN)
    return range(min(rank * lines // size * ALIGN, numel), min((rank + 1) * lines // size * ALIGN, numel))


class Arena:
    """Memory that the ranks of a `shm` group share; all ranks must allocate the same buffers in the same order."""

    def __init__(self, group: dist.ProcessGroup, nbytes: int) -> None:
        if not isinstance(group, ShmGroup):
            raise BadInput(f'an arena needs a process group with the backend "shm", found {type(group).__name__}')
        self.group: ShmGroup = group
        self.rank, self.size = group.rank(), group.size()
        total = TOKEN_BYTES + nbytes + PAGE
        self._bytes = torch.frombuffer(group.share_memory(total, f"an arena of {mib(nbytes)}"), dtype=torch.uint8)
        self._used = PAGE
        self._combiner = Combiner(self.size)
        self._options = dist.BarrierOptions()
        self._options.asyncOp = False

    @staticmethod
    def room(numel: int, dtype: torch.dtype) -> int:
        """Return how many bytes of an arena a buffer needs."""
        return -(-numel * dtype.itemsize // PAGE) * PAGE

    def shared(self, numel: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return a new buffer of zeros that is the same memory on all ranks."""
        end = self._used + self.room(numel, dtype)
        if end > self._bytes.numel():
            raise BadInput(
                f"the arena has {mib(self._bytes.numel() - self._used)} left, and this buffer needs "
                f"{mib(end - self._used)}: make the arena with more bytes"
            )
        buffer = self._bytes[self._used : self._used + numel * dtype.itemsize].view(dtype)
        self._used = end
        return buffer

    def per_rank(self, numel: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        """Return one new buffer for each rank; this rank's own is at index `arena.rank`."""
        return [self.shared(numel, dtype) for _ in range(self.size)]

    def barrier(self) -> None:
        """Wait for all ranks; what they wrote before the barrier can be read after it."""
        self.group.barrier(self._options)

    def reduce_slice(self, buffers: list[Tensor], part: range, out: Tensor, op: str = "sum") -> None:
        """Combine elements `part` of all buffers in tree order into `out`; call it between two barriers."""
        self._combine(buffers, part, out, [], op)

    def all_reduce(self, buffers: list[Tensor], op: str = "sum") -> None:
        """Combine all ranks' buffers in place: afterwards each of them holds the result."""
        part = owned_slice(buffers[0].numel(), self.size, self.rank)
        rest = [b[part.start : part.stop] for r, b in enumerate(buffers) if r != self.rank]
        self.barrier()
        self._combine(buffers, part, buffers[self.rank][part.start : part.stop], rest, op)
        self.barrier()

    def _combine(self, buffers: list[Tensor], part: range, out: Tensor, copies: list[Tensor], op: str) -> None:
        code = OPS.index(op)
        rank_tree.check(code, out.dtype)
        self._combiner.into(out, [b[part.start : part.stop] for b in buffers], code, copies)
