"""The parts of all ranks combined in tree order: the same additions whoever makes them, and wherever the parts lie.

Sums of plain numbers are made by numpy: the same additions as torch's, with a fraction of the time before each of them.
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
"""Of each part, combined at a time: larger blocks leave the cache, smaller ones are mostly calls."""

_PLAIN: Final = frozenset({torch.float32, torch.float64, torch.int32, torch.int64})
_SUMS: Final = ("sum", "avg")


class Kernels(NamedTuple):
    """The functions of torch or of numpy that combine, and the view of a tensor that they take."""

    view: Callable[[Tensor], Any]
    combine: Callable[..., Any]
    copy: Callable[[Any, Any], Any]
    """To, from."""
    mean: Callable[..., Any] | None
    """Divides at the end, if that is asked for."""

    def run(self, parts: list[Any], scratch: list[Any], result: Any) -> None:
        """Combine the parts in rank order; the result may be one of them. Two at least: one part is its own sum."""
        registers = parts + scratch
        for to, left, right in rank_tree.plan(len(parts)):
            self.combine(registers[left], registers[right], out=result if to == rank_tree.OUT else registers[to])
        if self.mean is not None:
            self.mean(result, len(parts), out=result)


@cache
def kernels(op: int, dtype: torch.dtype, device: str = "cpu") -> Kernels:
    """Return the functions for an operator; sums of plain numbers on the CPU by numpy."""
    mean = OPS[op] == "avg"
    if device == "cpu" and dtype in _PLAIN and OPS[op] in _SUMS:
        return Kernels(Tensor.numpy, np.add, np.copyto, np.true_divide if mean else None)
    divide = _divide_complex if dtype.is_complex else torch.div
    return Kernels(_same, rank_tree.combiner(op), Tensor.copy_, divide if mean else None)


def quiet() -> np.errstate:
    """Return a context in which numpy keeps quiet about an overflow, as torch does."""
    return np.errstate(all="ignore")


def quiet_context() -> Context:
    """Return the same to run small calls in: entering it takes a fraction of the time. One call at a time."""
    context = copy_context()
    context.run(np.seterr, all="ignore")
    return context


def in_blocks(rows: Sequence[Any], block: int) -> Iterator[tuple[Any, ...]]:
    """Return rows of one length side by side, so many elements of each at a time."""
    return zip(*([row[start : start + block] for start in range(0, len(row), block)] for row in rows), strict=True)


class Combiner:
    """Combines the parts of `size` ranks, block by block; used by one thread at a time."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._scratch: dict[tuple[torch.dtype, str], list[Tensor]] = {}

    def into(self, out: Tensor, parts: Sequence[Tensor], op: int, copies: Sequence[Tensor] = ()) -> None:
        """Combine the parts, in rank order, into `out`, which may be one of them, and copy it to `copies`; all flat."""
        if self.size == 1:
            for to in (out, *copies):
                if to.data_ptr() != parts[0].data_ptr():
                    to.copy_(parts[0])
            return
        how = kernels(op, out.dtype, out.device.type)
        block = BLOCK_BYTES // out.itemsize
        scratch = [how.view(s) for s in self._room(out, block)]
        with quiet():
            for result, *rest in in_blocks([how.view(row) for row in (out, *parts, *copies)], block):
                length = len(result)
                room = scratch if length == block else [s[:length] for s in scratch]
                how.run(rest[: self.size], room, result)
                for other in rest[self.size :]:
                    how.copy(other, result)

    def _room(self, like: Tensor, block: int) -> list[Tensor]:
        key = (like.dtype, str(like.device))
        found = self._scratch.get(key)
        if found is None:
            found = [like.new_empty(block) for _ in range(rank_tree.scratch_count(self.size))]
            self._scratch[key] = found
        return found


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _divide_complex(total: Tensor, count: float, *, out: Tensor) -> None:
    # Part by part: torch's complex division rounds more than once, and torch.distributed hands all_reduce the parts as
    # real numbers but reduce the whole, so the two would differ.
    torch.div(torch.view_as_real(total), count, out=torch.view_as_real(out))
