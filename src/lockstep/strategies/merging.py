"""Adds large gradients to each other and to the sums above them in one pass.

    lane 3 of four:    tree      (g0 + g1) + (g2 + g3)
                       memory     a sum       kept  new      block by block, in the cache:  sum + (g2 + g3)

Copying g2 first, adding g3 to it, and that to the sum would read a whole set of gradients three times more, and write
one twice more. The additions, and so the bits, are the same.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import torch
from torch import Tensor

from lockstep.comm.combine import BLOCK_BYTES, in_blocks, kernels, quiet
from lockstep.comm.tensors import plain
from lockstep.comm.wire import SUM


def lazy_zeros(like: Tensor) -> Tensor:
    """Return zeros for sums that large gradients usually bypass: pages that are never written need no memory."""
    if not like.is_cpu:
        return torch.zeros_like(like)
    pages = mmap.mmap(-1, like.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=like.dtype)


class Merger:
    """Adds up chains of terms; used by one thread at a time."""

    def __init__(self) -> None:
        self._room: dict[torch.dtype, Tensor] = {}

    def add_up(self, terms: Sequence[Tensor], out: Tensor) -> None:
        """Add the second term to the first, the third to that sum, and so on; `out` may be one of the terms."""
        if len(terms) == 1:
            if terms[0] is not out:
                out.copy_(terms[0])
        elif len(terms) == 2:
            torch.add(terms[0], terms[1], out=out)
        elif all(map(plain, (*terms, out))):
            self._by_blocks([one.detach().view(-1) for one in terms], out.view(-1))
        else:
            torch.add(sum(terms[1:-1], terms[0]), terms[-1], out=out)

    def _by_blocks(self, terms: Sequence[Tensor], out: Tensor) -> None:
        kernel, block = kernels(SUM, out.dtype), BLOCK_BYTES // out.itemsize
        if out.dtype not in self._room:
            self._room[out.dtype] = out.new_empty(block)
        room = kernel.view(self._room[out.dtype])
        with quiet():
            for result, total, *between, last in in_blocks([kernel.view(one) for one in (out, *terms)], block):
                for term in between:
                    total = kernel.combine(total, term, out=room[: len(term)])
                kernel.combine(total, last, out=result)
