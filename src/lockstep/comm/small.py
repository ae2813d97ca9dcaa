"""The fast path of small tensors: everything that is known before a call is computed once and cached.

[Note: the fast path]
A small collective is one round (see sync.py), and the Python around it takes longer than the round, most of all where
ranks share a core, because a process that was just switched in has cold caches. So what depends only on dtype, shape
and operator (the call's signature, the views of the outboxes, the tree of additions) is cached in a plan. What is left
of a call: write the signature, copy the data in, post, wait, compare the signatures, combine, copy out.
Sums of plain numbers are made by numpy: the same additions with half the overhead.
Results and errors are those of collectives.py; one contract suite tests both paths.
"""

from __future__ import annotations

from ctypes import memmove
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import Tensor

from lockstep.comm import combine, rank_tree
from lockstep.comm.bounded_cache import insert
from lockstep.comm.segment_layout import SMALL_BYTES
from lockstep.comm.tensors import plain
from lockstep.comm.wire import Call, CollectiveKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstep.comm.outboxes import Outboxes
    from lockstep.comm.sync import Deadline

MAX_PLANS: Final = 256
"""Plans in the cache."""

Step = tuple[Any, Any, Any]
"""(left, right, result): tensors, or numpy arrays."""


def fits(tensor: Tensor) -> bool:
    """Return whether a tensor is plain and small."""
    return plain(tensor) and 0 < tensor.nbytes <= SMALL_BYTES


class _Plan(NamedTuple):
    call: Call
    signature: bytes
    nbytes: int
    kernel: combine.Kernels
    steps: tuple[tuple[Step, ...], tuple[Step, ...]]
    """By parity; the last step writes to `result`."""
    result: Any
    """A view of the result, as the steps need it."""
    address: int
    """The address of the result."""
    ranks: int


class SmallCalls:
    """The small collectives of one group; used by the thread that has the turn."""

    def __init__(self, outboxes: Outboxes) -> None:
        self._outboxes = outboxes
        self._reductions: dict[tuple[torch.dtype, torch.Size, int], _Plan] = {}
        self._gathers: dict[tuple[torch.dtype, int], tuple[Call, bytes]] = {}
        self._quiet = combine.quiet_context()

    def all_reduce(self, tensor: Tensor, op: int, deadline: Callable[[], Deadline]) -> None:
        """Combine a tensor that `fits` over all ranks, in place."""
        key = (tensor.dtype, tensor.shape, op)
        plan = self._reductions.get(key) or self._plan(tensor, op)
        outboxes = self._outboxes
        rounds = outboxes.rounds
        parity = rounds.parity
        memmove(outboxes.outbox[parity][outboxes.rank], tensor.data_ptr(), plan.nbytes)
        outboxes.round_of(plan.call, plan.signature, deadline)
        self._quiet.run(_combine, plan, plan.steps[parity])
        if outboxes.size > 1:
            memmove(tensor.data_ptr(), plan.address, plan.nbytes)
        rounds.parity = parity ^ 1

    def all_gather(self, source: Tensor, outputs: list[int], deadline: Callable[[], Deadline]) -> None:
        """Copy every rank's tensor to its output address; all have the size and dtype of `source`, which `fits`."""
        key = (source.dtype, source.numel())
        known = self._gathers.get(key)
        if known is None:
            call = Call(CollectiveKind.all_gather, source.numel(), source.dtype)
            known = insert(self._gathers, key, (call, call.signature()), MAX_PLANS)
        outboxes, size, address = self._outboxes, source.nbytes, source.data_ptr()
        boxes = outboxes.outbox[outboxes.rounds.parity]
        memmove(boxes[outboxes.rank], address, size)
        outboxes.round_of(*known, deadline)
        for output, box in zip(outputs, boxes, strict=True):
            memmove(output, box, size)
        outboxes.rounds.parity ^= 1

    def _plan(self, tensor: Tensor, op: int) -> _Plan:
        rank_tree.check(op, tensor.dtype)
        size, numel = self._outboxes.size, tensor.numel()
        call = Call(CollectiveKind.all_reduce, numel, tensor.dtype, op)
        result = torch.empty(numel, dtype=tensor.dtype)
        rows = [self._outboxes.rows(tensor.dtype, numel, parity) for parity in (0, 1)]
        make = _by_level if size & (size - 1) == 0 else _by_node
        steps = [make(row, result) for row in rows]
        kernel = combine.kernels(op, tensor.dtype)
        steps = [
            [(kernel.view(left), kernel.view(right), kernel.view(to)) for left, right, to in each] for each in steps
        ]
        plan = _Plan(
            call=call,
            signature=call.signature(),
            nbytes=tensor.nbytes,
            kernel=kernel,
            steps=(tuple(steps[0]), tuple(steps[1])),
            result=kernel.view(result),
            address=result.data_ptr(),
            ranks=size,
        )
        return insert(self._reductions, (tensor.dtype, tensor.shape, op), plan, MAX_PLANS)


def _combine(plan: _Plan, steps: tuple[Step, ...]) -> None:
    for left, right, to in steps:
        plan.kernel.combine(left, right, out=to)
    if plan.kernel.mean is not None and plan.ranks > 1:
        plan.kernel.mean(plan.result, plan.ranks, out=plan.result)


def _by_node(rows: Tensor, result: Tensor) -> list[Step]:
    """Return the steps of the tree one by one."""
    size = len(rows)
    registers = [*rows, *(torch.empty_like(result) for _ in range(rank_tree.scratch_count(size)))]
    return [
        (registers[left], registers[right], result if to == rank_tree.OUT else registers[to])
        for to, left, right in rank_tree.plan(size)
    ]


def _by_level(rows: Tensor, result: Tensor) -> list[Step]:
    """Return the steps if the number of rows is a power of two: all pairs of a level at once, in the same tree."""
    steps: list[Step] = []
    while len(rows) > 2:
        level = torch.empty(len(rows) // 2, rows.shape[1], dtype=rows.dtype)
        steps.append((rows[0::2], rows[1::2], level))
        rows = level
    if len(rows) == 2:
        steps.append((rows[0], rows[1], result))
    return steps
