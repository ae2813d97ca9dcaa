"""The short way of small tensors: everything that can be known before a call is made once and kept.

[Note: the short way]
A small collective is one round (see sync.py), and the Python around it costs more than the round: most of all where
ranks share a core, because a process that was just switched in finds all its caches cold. So what follows from dtype,
shape and operator (the line that describes the call, the views of the outboxes, the order of additions) is kept in a
plan, and a call is left with: write the line, copy the data in, post, wait, compare the lines, combine, copy out.
Sums of plain numbers are added by numpy: the same additions, and half the way to them.
The result and the errors are those of the long way in collectives.py; one contract suite tests both.
"""

from __future__ import annotations

from ctypes import memmove
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import Tensor

from lockstep.comm import combine, rank_tree
from lockstep.comm.kept import keep
from lockstep.comm.segment_layout import SMALL_BYTES
from lockstep.comm.tensors import plain
from lockstep.comm.wire import Call, Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstep.comm.outboxes import Outboxes
    from lockstep.comm.sync import Deadline

PLANS_KEPT: Final = 256

Step = tuple[Any, Any, Any]
"""Left, right, and where to: tensors, or arrays of numpy."""


def fits(tensor: Tensor) -> bool:
    """Tell whether a tensor is plain, and small."""
    return plain(tensor) and 0 < tensor.nbytes <= SMALL_BYTES


class _Plan(NamedTuple):
    call: Call
    line: bytes
    nbytes: int
    how: combine.Kernels
    steps: tuple[tuple[Step, ...], tuple[Step, ...]]
    """By parity; the last leaves the result in `result`."""
    result: Any
    """As the steps see it."""
    address: int
    """Of its memory."""
    ranks: int


class SmallCalls:
    """The small collectives of one group; used by whoever has the turn."""

    def __init__(self, outboxes: Outboxes) -> None:
        self._outboxes = outboxes
        self._reductions: dict[tuple[torch.dtype, torch.Size, int], _Plan] = {}
        self._gathers: dict[tuple[torch.dtype, int], tuple[Call, bytes]] = {}
        self._quiet = combine.quiet_context()

    def all_reduce(self, tensor: Tensor, op: int, deadline: Callable[[], Deadline]) -> None:
        """Combine a tensor that `fits` over all ranks, in place."""
        key = (tensor.dtype, tensor.shape, op)
        plan = self._reductions.get(key) or self._plan(tensor, op)
        ex = self._outboxes
        rounds = ex.rounds
        parity = rounds.parity
        memmove(ex.outbox[parity][ex.rank], tensor.data_ptr(), plan.nbytes)
        ex.round_of(plan.call, plan.line, deadline)
        self._quiet.run(_combine, plan, plan.steps[parity])
        if ex.size > 1:
            memmove(tensor.data_ptr(), plan.address, plan.nbytes)
        rounds.parity = parity ^ 1

    def all_gather(self, source: Tensor, outputs: list[int], deadline: Callable[[], Deadline]) -> None:
        """Copy every rank's tensor, each like `source`, which `fits`, to the rank's output address."""
        key = (source.dtype, source.numel())
        known = self._gathers.get(key)
        if known is None:
            call = Call(Kind.all_gather, source.numel(), source.dtype)
            known = keep(self._gathers, key, (call, call.line()), PLANS_KEPT)
        ex, size, address = self._outboxes, source.nbytes, source.data_ptr()
        boxes = ex.outbox[ex.rounds.parity]
        memmove(boxes[ex.rank], address, size)
        ex.round_of(*known, deadline)
        for output, box in zip(outputs, boxes, strict=True):
            memmove(output, box, size)
        ex.rounds.parity ^= 1

    def _plan(self, tensor: Tensor, op: int) -> _Plan:
        rank_tree.check(op, tensor.dtype)
        size, numel = self._outboxes.size, tensor.numel()
        call = Call(Kind.all_reduce, numel, tensor.dtype, op)
        result = torch.empty(numel, dtype=tensor.dtype)
        rows = [self._outboxes.rows(tensor.dtype, numel, parity) for parity in (0, 1)]
        make = _by_level if size & (size - 1) == 0 else _by_node
        steps = [make(row, result) for row in rows]
        how = combine.kernels(op, tensor.dtype)
        steps = [[(how.view(left), how.view(right), how.view(to)) for left, right, to in each] for each in steps]
        plan = _Plan(
            call=call,
            line=call.line(),
            nbytes=tensor.nbytes,
            how=how,
            steps=(tuple(steps[0]), tuple(steps[1])),
            result=how.view(result),
            address=result.data_ptr(),
            ranks=size,
        )
        return keep(self._reductions, (tensor.dtype, tensor.shape, op), plan, PLANS_KEPT)


def _combine(plan: _Plan, steps: tuple[Step, ...]) -> None:
    for left, right, to in steps:
        plan.how.combine(left, right, out=to)
    if plan.how.mean is not None and plan.ranks > 1:
        plan.how.mean(plan.result, plan.ranks, out=plan.result)


def _by_node(rows: Tensor, result: Tensor) -> list[Step]:
    """Return the steps of the tree one by one."""
    size = len(rows)
    registers = [*rows, *(torch.empty_like(result) for _ in range(rank_tree.scratch_count(size)))]
    return [
        (registers[left], registers[right], result if to == rank_tree.OUT else registers[to])
        for to, left, right in rank_tree.plan(size)
    ]


def _by_level(rows: Tensor, result: Tensor) -> list[Step]:
    """Return the steps for a power of two of rows: all pairs of a level at once, which is the same tree."""
    steps: list[Step] = []
    while len(rows) > 2:
        level = torch.empty(len(rows) // 2, rows.shape[1], dtype=rows.dtype)
        steps.append((rows[0::2], rows[1::2], level))
        rows = level
    if len(rows) == 2:
        steps.append((rows[0], rows[1], result))
    return steps
