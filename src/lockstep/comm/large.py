"""A large all_reduce, chunk by chunk: rank j combines slice j of each chunk.

    outbox of rank 1, round k, four ranks:   | slice 0  | result 1   | slice 2  | slice 3  |
                                             | of chunk | of chunk   | of chunk | of chunk |
                                             |    k     |    k - 1   |    k     |    k     |

    1 write this rank's slices of chunk k to its outbox, for the ranks that combine them
    2 combine the own slice of chunk k-1, which the others wrote in the round before, and write the result
    3 barrier
    4 read the others' results of chunk k-1

What to copy where is the same for every chunk but the last, so it is computed once and cached: with more ranks than
cores every round starts with cold caches, and a line of Python then takes three times as long as elsewhere.
"""

from __future__ import annotations

from ctypes import memmove
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from lockstep.comm import combine, rank_tree
from lockstep.comm.bounded_cache import insert
from lockstep.comm.segment_layout import ALIGN

if TYPE_CHECKING:
    from torch import Tensor

    from lockstep.comm.combine import Kernels
    from lockstep.comm.outboxes import Outboxes
    from lockstep.comm.sync import Deadline
    from lockstep.comm.wire import Call

MAX_TABLES: Final = 16
"""Tables in the cache; each has scratch buffers of one slice, a few hundred KiB."""


def part_of(length: int, room: int, size: int, rank: int) -> range:
    """Return the elements of a rank's slice of a chunk of `length` elements, at most `room` elements for each rank."""
    # The last chunk is shorter; it is cut into equal slices too, at cache lines.
    step = -(-length // size)
    step = min(step + -step % ALIGN, room)
    return range(min(rank * step, length), min((rank + 1) * step, length))


class _Table(NamedTuple):
    """What this rank copies and combines for chunks of one length; lists are by parity."""

    own: range
    """The elements that it combines."""
    writes: list[list[tuple[int, int, int]]]
    """(address in the own outbox, offset in the chunk, bytes)."""
    parts: list[list[Any]]
    """The ranks' slices as they were written a round ago; the own one is filled in."""
    result: list[Any]
    """Where it writes the result."""
    scratch: list[Any]
    reads: list[list[tuple[int, int, int]]]
    """(offset in the chunk, address in a peer's outbox, bytes)."""


class LargeReductions:
    """The large reductions of one group; used by the thread that has the turn."""

    def __init__(self, outboxes: Outboxes) -> None:
        self._outboxes = outboxes
        self._tables: dict[tuple[torch.dtype, int, Kernels], _Table] = {}

    def all_reduce(self, tensor: Tensor, call: Call, deadline: Deadline) -> None:
        """Combine all ranks' tensors in place, or only on the call's root; numbers are those of the diagram."""
        outboxes, item, address = self._outboxes, tensor.element_size(), tensor.data_ptr()
        if outboxes.size == 1:
            return
        kernel = combine.kernels(call.op, tensor.dtype)
        row, keeps = kernel.view(tensor), call.root in (-1, outboxes.rank)
        chunk = outboxes.layout.piece() // item * outboxes.size
        starts = range(0, call.numel, chunk)
        tables = [
            self._table(tensor.dtype, min(chunk, call.numel - start), kernel) for start in (starts[0], starts[-1])
        ]
        with combine.quiet():
            for number in range(len(starts) + 1):
                parity = outboxes.parity ^ (number > 0)
                if number < len(starts):
                    at = address + starts[number] * item
                    for to, offset, size in tables[number == len(starts) - 1].writes[parity]:  # 1
                        memmove(to, at + offset, size)
                done, start = tables[number == len(starts)], starts[number - 1]  # of the round before
                if number > 0:
                    self._combine(done, row[start : start + chunk], kernel, parity, keeps=keeps)  # 2
                outboxes.round_after(number, call, deadline)  # 3
                if number > 0 and keeps:
                    at = address + start * item
                    for offset, source, size in done.reads[parity]:  # 4
                        memmove(at + offset, source, size)
        outboxes.end()

    def _combine(self, table: _Table, chunk: Any, kernel: Kernels, parity: int, *, keeps: bool) -> None:
        if not table.own:
            return
        own, parts, result = chunk[table.own.start : table.own.stop], table.parts[parity], table.result[parity]
        parts[self._outboxes.rank] = own
        kernel.run(parts, table.scratch, result)
        parts[self._outboxes.rank] = None  # a cached table must not keep a user's tensor alive
        if keeps:
            kernel.copy(own, result)

    def _table(self, dtype: torch.dtype, length: int, kernel: Kernels) -> _Table:
        key = (dtype, length, kernel)
        return self._tables.get(key) or insert(self._tables, key, self._new_table(dtype, length, kernel), MAX_TABLES)

    def _new_table(self, dtype: torch.dtype, length: int, kernel: Kernels) -> _Table:
        outboxes, item = self._outboxes, dtype.itemsize
        room = outboxes.layout.piece() // item
        slices = [part_of(length, room, outboxes.size, r) for r in range(outboxes.size)]
        own, boxes, address = slices[outboxes.rank], outboxes.typed(dtype), outboxes.outbox
        own_piece = slice(outboxes.rank * room, outboxes.rank * room + len(own))
        copies = [(r, slices[r].start * item, len(slices[r]) * item) for r in outboxes.others if slices[r]]
        return _Table(
            own=own,
            writes=[
                [(address[p][outboxes.rank] + r * room * item, at, size) for r, at, size in copies] for p in (0, 1)
            ],
            parts=[[kernel.view(boxes[p ^ 1][r][own_piece]) for r in range(outboxes.size)] for p in (0, 1)],
            result=[kernel.view(boxes[p][outboxes.rank][own_piece]) for p in (0, 1)],
            scratch=[
                kernel.view(torch.empty(len(own), dtype=dtype)) for _ in range(rank_tree.scratch_count(outboxes.size))
            ],
            reads=[[(at, address[p][r] + r * room * item, size) for r, at, size in copies] for p in (0, 1)],
        )
