"""Combines the parts of all ranks in tree order: the same additions, whoever makes them and wherever the parts lie.

Sums of plain numbers are made by numpy: the same additions as torch's, with a fraction of the overhead of each call.
"""

from __future__ import annotations

from contextvars import Context, copy_context
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lockstep.comm import rank_tree
from lockstep.comm.wire import OPS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

BLOCK_BYTES: Final = 256 * 1024
"""Bytes of each part that are combined at a time: larger blocks leave the cache, smaller ones are mostly overhead."""

_PLAIN: Final = frozenset({torch.float32, torch.float64, torch.int32, torch.int64})
_SUMS: Final = ("sum", "avg")


class Kernels(NamedTuple):
    """The functions of torch or of numpy that combine, and the view of a tensor that they take."""

    view: Callable[[Tensor], Any]
    combine: Callable[..., Any]
    copy: Callable[[Any, Any], Any]
    """copy(to, source)."""
    mean: Callable[..., Any] | None
    """Divides the sum at the end, for a mean."""

    def run(self, parts: list[Any], scratch: list[Any], result: Any) -> None:
        """Combine at least two parts, given in rank order; the result may be one of them."""
        registers = parts + scratch
        for to, left, right in rank_tree.plan(len(parts)):
            self.combine(registers[left], registers[right], out=result if to == rank_tree.OUT else registers[to])
        if self.mean is not None:
            self.mean(result, len(parts), out=result)


@cache
def kernels(op: int, dtype: torch.dtype, device: str = "cpu") -> Kernels:
    """Return the functions for an operator: numpy's for sums of plain numbers on the CPU, else torch's."""
    mean = OPS[op] == "avg"
    if device == "cpu" and dtype in _PLAIN and OPS[op] in _SUMS:
        return Kernels(Tensor.numpy, np.add, np.copyto, np.true_divide if mean else None)
    divide = _divide_complex if dtype.is_complex else torch.div
    return Kernels(_same, rank_tree.torch_function(op), Tensor.copy_, divide if mean else None)


def quiet() -> np.errstate:
    """Return a context in which numpy does not warn about overflow, like torch."""
    return np.errstate(all="ignore")


def quiet_context() -> Context:
    """Return the same as a context to run small calls in, which is faster to enter; for one call at a time."""
    context = copy_context()
    context.run(np.seterr, all="ignore")
    return context


def in_blocks(rows: Sequence[Any], block: int) -> Iterator[tuple[Any, ...]]:
    """Yield rows of equal length side by side, `block` elements of each at a time."""
    return zip(*([row[start : start + block] for start in range(0, len(row), block)] for row in rows), strict=True)


class Combiner:
    """Combines the parts of `size` ranks, block by block; used by one thread at a time."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._scratch: dict[tuple[torch.dtype, str], list[Tensor]] = {}

    def into(self, out: Tensor, parts: Sequence[Tensor], op: int, copies: Sequence[Tensor] = ()) -> None:
        """Combine flat parts, in rank order, into `out`, which may be one of them; copy the result to `copies`."""
        if self.size == 1:
            for to in (out, *copies):
                if to.data_ptr() != parts[0].data_ptr():
                    to.copy_(parts[0])
            return
        kernel = kernels(op, out.dtype, out.device.type)
        block = BLOCK_BYTES // out.itemsize
        scratch = [kernel.view(s) for s in self._room(out, block)]
        with quiet():
            for result, *rest in in_blocks([kernel.view(row) for row in (out, *parts, *copies)], block):
                length = len(result)
                room = scratch if length == block else [s[:length] for s in scratch]
                kernel.run(rest[: self.size], room, result)
                for other in rest[self.size :]:
                    kernel.copy(other, result)

    def _room(self, like: Tensor, block: int) -> list[Tensor]:
        key = (like.dtype, str(like.device))
        scratch = self._scratch.get(key)
        if scratch is None:
            scratch = [like.new_empty(block) for _ in range(rank_tree.scratch_count(self.size))]
            self._scratch[key] = scratch
        return scratch


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _divide_complex(total: Tensor, count: float, *, out: Tensor) -> None:
    # Real and imaginary parts apart: torch's complex division rounds more than once, and torch.distributed passes
    # all_reduce real numbers but reduce complex ones, so the two would differ.
    torch.div(torch.view_as_real(total), count, out=torch.view_as_real(out))
