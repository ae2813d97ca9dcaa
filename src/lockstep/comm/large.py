"""A large all_reduce, chunk after chunk: rank j combines slice j of each.

    outbox of rank 1, round k, four ranks:   | slice 0  | result 1   | slice 2  | slice 3  |
                                             | of chunk | of chunk   | of chunk | of chunk |
                                             |    k     |    k - 1   |    k     |    k     |

1 show this rank's slices of chunk k, for the ranks that combine them
2 combine the own slice of chunk k-1, which the others showed a round ago, and show the result
3 meet
4 take the others' results of chunk k-1

What to copy where is the same for every chunk but the last, so it is worked out once and kept: with more ranks than
cores a round finds all caches cold, and every line of Python in it costs three times what it does elsewhere.
"""

from __future__ import annotations

from ctypes import memmove
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from lockstep.comm import combine, rank_tree
from lockstep.comm.kept import keep
from lockstep.comm.segment_layout import ALIGN

if TYPE_CHECKING:
    from torch import Tensor

    from lockstep.comm.combine import Kernels
    from lockstep.comm.outboxes import Outboxes
    from lockstep.comm.sync import Deadline
    from lockstep.comm.wire import Call

TABLES_KEPT: Final = 16
"""A table has scratch buffers of a slice each, a few hundred KiB."""


def part_of(length: int, room: int, size: int, rank: int) -> range:
    """Return the elements of a rank's slice of a chunk of some length, at most `room` elements for each rank."""
    # The last chunk is shorter and cut evenly too, at cache lines.
    step = -(-length // size)
    step = min(step + -step % ALIGN, room)
    return range(min(rank * step, length), min((rank + 1) * step, length))


class _Table(NamedTuple):
    """What this rank does with a chunk of one length; lists are by parity."""

    own: range
    """The elements that it combines."""
    shows: list[list[tuple[int, int, int]]]
    """Address in the outbox, offset in the chunk, bytes."""
    parts: list[list[Any]]
    """The ranks' slices as they were shown a round ago; the own one is filled in."""
    result: list[Any]
    """Where it shows the sum."""
    scratch: list[Any]
    takes: list[list[tuple[int, int, int]]]
    """Offset in the chunk, address in a peer's outbox, bytes."""


class LargeReductions:
    """The large reductions of one group; used by whoever has the turn."""

    def __init__(self, outboxes: Outboxes) -> None:
        self._outboxes = outboxes
        self._tables: dict[tuple[torch.dtype, int, Kernels], _Table] = {}

    def all_reduce(self, tensor: Tensor, call: Call, deadline: Deadline) -> None:
        """Combine all ranks' tensors in place, or at the call's root only; the numbers are those of the drawing."""
        ex, item, address = self._outboxes, tensor.element_size(), tensor.data_ptr()
        if ex.size == 1:
            return
        how = combine.kernels(call.op, tensor.dtype)
        row, keeps = how.view(tensor), call.root in (-1, ex.rank)
        chunk = ex.layout.piece() // item * ex.size
        starts = range(0, call.numel, chunk)
        tables = [self._table(tensor.dtype, min(chunk, call.numel - start), how) for start in (starts[0], starts[-1])]
        with combine.quiet():
            for number in range(len(starts) + 1):
                parity = ex.parity ^ (number > 0)
                if number < len(starts):
                    at = address + starts[number] * item
                    for to, offset, size in tables[number == len(starts) - 1].shows[parity]:  # 1
                        memmove(to, at + offset, size)
                done, start = tables[number == len(starts)], starts[number - 1]  # of the round before
                if number > 0:
                    self._combine(done, row[start : start + chunk], how, parity, keeps=keeps)  # 2
                ex.round_after(number, call, deadline)  # 3
                if number > 0 and keeps:
                    at = address + start * item
                    for offset, source, size in done.takes[parity]:  # 4
                        memmove(at + offset, source, size)
        ex.end()

    def _combine(self, table: _Table, chunk: Any, how: Kernels, parity: int, *, keeps: bool) -> None:
        if not table.own:
            return
        own, parts, result = chunk[table.own.start : table.own.stop], table.parts[parity], table.result[parity]
        parts[self._outboxes.rank] = own
        how.run(parts, table.scratch, result)
        parts[self._outboxes.rank] = None  # a kept table must not keep a user's tensor
        if keeps:
            how.copy(own, result)

    def _table(self, dtype: torch.dtype, length: int, how: Kernels) -> _Table:
        key = (dtype, length, how)
        return self._tables.get(key) or keep(self._tables, key, self._new_table(dtype, length, how), TABLES_KEPT)

    def _new_table(self, dtype: torch.dtype, length: int, how: Kernels) -> _Table:
        ex, item = self._outboxes, dtype.itemsize
        room = ex.layout.piece() // item
        slices = [part_of(length, room, ex.size, r) for r in range(ex.size)]
        own, boxes, address = slices[ex.rank], ex.typed(dtype), ex.outbox
        shown = slice(ex.rank * room, ex.rank * room + len(own))
        copies = [(r, slices[r].start * item, len(slices[r]) * item) for r in ex.others if slices[r]]
        return _Table(
            own=own,
            shows=[[(address[p][ex.rank] + r * room * item, at, size) for r, at, size in copies] for p in (0, 1)],
            parts=[[how.view(boxes[p ^ 1][r][shown]) for r in range(ex.size)] for p in (0, 1)],
            result=[how.view(boxes[p][ex.rank][shown]) for p in (0, 1)],
            scratch=[how.view(torch.empty(len(own), dtype=dtype)) for _ in range(rank_tree.scratch_count(ex.size))],
            takes=[[(at, address[p][r] + r * room * item, size) for r, at, size in copies] for p in (0, 1)],
        )
