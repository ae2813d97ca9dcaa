"""Every collective as a sequence of rounds over contiguous memory; see the drawing in sync.py.

A tensor here is contiguous and flat, or an address with a length: shapes, strides and lists are shm.py's concern.
"""

from __future__ import annotations

import struct
from ctypes import memmove
from typing import TYPE_CHECKING, Final

from lockstep.comm import tree
from lockstep.comm.layout import SMALL_BYTES
from lockstep.comm.wire import Call, Kind
from lockstep.errors import Mismatch

if TYPE_CHECKING:
    from torch import Tensor

    from lockstep.comm.exchange import Exchange
    from lockstep.comm.sync import Deadline

ALIGN: Final = 64
"""Pieces in an outbox start at cache lines."""

Span = tuple[int, int]
"""Address and bytes."""


def _chunks(total: int, step: int) -> list[range]:
    return [range(start, min(start + step, total)) for start in range(0, total, step)] or [range(0)]


def _piece(capacity: int, pieces: int) -> int:
    """Return how many bytes each of `pieces` parts of an outbox may have."""
    return capacity // pieces // ALIGN * ALIGN


def barrier(ex: Exchange, deadline: Deadline) -> None:
    """Wait for all."""
    ex.first_round(Call(Kind.barrier), deadline)
    ex.end()


def broadcast(ex: Exchange, span: Span, call: Call, deadline: Deadline) -> None:
    """Root shows a chunk a round, the others take it."""
    address, size = span
    root = call.root
    for number, chunk in enumerate(_chunks(size, ex.layout.outbox_bytes)):
        if ex.rank == root:
            ex.show(address + chunk.start, len(chunk), parity=ex.parity ^ (number > 0))
        _meet(ex, number, call, deadline)
        if ex.rank != root:
            ex.take(address + chunk.start, root, len(chunk))
    ex.end()


def _meet(ex: Exchange, number: int, call: Call, deadline: Deadline) -> None:
    if number == 0:
        ex.first_round(call, deadline)
    else:
        ex.next_round()


def all_gather(ex: Exchange, source: Span, outputs: list[Span], call: Call, deadline: Deadline) -> None:
    """Everyone shows a chunk a round; those with outputs take all of them. A gather has outputs at its root only."""
    address, size = source
    for number, chunk in enumerate(_chunks(size, ex.layout.outbox_bytes)):
        ex.show(address + chunk.start, len(chunk), parity=ex.parity ^ (number > 0))
        _meet(ex, number, call, deadline)
        if outputs:
            for rank in ex.others:
                ex.take(outputs[rank][0] + chunk.start, rank, len(chunk))
    if outputs and outputs[ex.rank][0] != address:
        memmove(outputs[ex.rank][0], address, size)
    ex.end()


def scatter(ex: Exchange, inputs: list[Span], output: Span, call: Call, deadline: Deadline) -> None:
    """Root shows a piece for every rank, each takes its own."""
    address, size = output
    room = _piece(ex.layout.outbox_bytes, ex.size)
    for number, chunk in enumerate(_chunks(size, room)):
        if ex.rank == call.root:
            for rank in ex.others:
                ex.show(inputs[rank][0] + chunk.start, len(chunk), rank * room, parity=ex.parity ^ (number > 0))
        _meet(ex, number, call, deadline)
        if ex.rank != call.root:
            ex.take(address + chunk.start, call.root, len(chunk), ex.rank * room)
    if ex.rank == call.root and inputs[ex.rank][0] != address:
        memmove(address, inputs[ex.rank][0], size)
    ex.end()


def all_reduce(ex: Exchange, tensor: Tensor, call: Call, deadline: Deadline) -> None:
    """Combine all ranks' tensors in place; with a root, only there."""
    size = call.numel * tensor.element_size()
    if size <= SMALL_BYTES:
        _small_all_reduce(ex, tensor, call, deadline)
    else:
        _SlicedReduce(ex, tensor, call).run(deadline)


def _small_all_reduce(ex: Exchange, tensor: Tensor, call: Call, deadline: Deadline) -> None:
    """Everyone shows everything, and combines everything itself; small.py does the same for the commonest calls."""
    ex.show(tensor.data_ptr(), tensor.nbytes)
    ex.first_round(call, deadline)
    if call.numel and call.root in (-1, ex.rank):
        scratch = ex.scratch(tensor.dtype, call.numel, tree.scratch_count(ex.size))
        tree.reduce_into(tensor, list(ex.rows(tensor.dtype, call.numel, ex.parity)), call.op, scratch)
    ex.end()


def part_of(numel: int, room: int, size: int, chunk: int, rank: int) -> range:
    """Return the elements of a rank's slice of a chunk, where a chunk is at most `room` elements for each rank."""
    start = chunk * room * size
    length = min(room * size, numel - start)
    # The last chunk is shorter and cut evenly too, at cache lines.
    step = -(-length // size)
    step = min(step + -step % ALIGN, room)
    return range(start + min(rank * step, length), start + min((rank + 1) * step, length))


class _SlicedReduce:
    """A large all_reduce: rank j combines slice j of every chunk.

        outbox of rank 1, round k, four ranks:   | slice 0  | result 1   | slice 2  | slice 3  |
                                                 | of chunk | of chunk   | of chunk | of chunk |
                                                 |    k     |    k - 1   |    k     |    k     |

    1 show this rank's slices of chunk k, for the ranks that combine them
    2 combine the own slice of chunk k-1, which the others showed a round ago, and show the result
    3 meet
    4 take the others' results of chunk k-1
    """

    def __init__(self, ex: Exchange, tensor: Tensor, call: Call) -> None:
        self.ex, self.tensor, self.call = ex, tensor, call
        self.item = tensor.element_size()
        self.address = tensor.data_ptr()
        # Elements of a slice; a chunk is one slice for every rank.
        self.slice = _piece(ex.layout.outbox_bytes, ex.size) // self.item
        self.chunk = self.slice * ex.size
        self.count = -(-call.numel // self.chunk)
        self.boxes = ex.typed(tensor.dtype)
        self.scratch = ex.scratch(tensor.dtype, self.slice, tree.scratch_count(ex.size))

    def run(self, deadline: Deadline) -> None:
        ex = self.ex
        for number in range(self.count + 1):
            parity = ex.parity ^ (number > 0)
            if number < self.count:
                self._show_inputs(number, parity)  # 1
            if number > 0:
                self._combine(number - 1, parity)  # 2
            _meet(ex, number, self.call, deadline)  # 3
            if number > 0 and self.call.root in (-1, ex.rank):
                for rank in ex.others:  # 4
                    part = self._part(number - 1, rank)
                    self._take(part, rank)
        ex.end()

    def _part(self, chunk: int, rank: int) -> range:
        return part_of(self.call.numel, self.slice, self.ex.size, chunk, rank)

    def _at(self, rank: int) -> int:
        return rank * self.slice * self.item

    def _take(self, part: range, rank: int) -> None:
        self.ex.take(self.address + part.start * self.item, rank, len(part) * self.item, self._at(rank))

    def _show_inputs(self, chunk: int, parity: int) -> None:
        for rank in self.ex.others:
            part = self._part(chunk, rank)
            start = self.address + part.start * self.item
            self.ex.show(start, len(part) * self.item, self._at(rank), parity=parity)

    def _combine(self, chunk: int, parity: int) -> None:
        ex = self.ex
        part = self._part(chunk, ex.rank)
        if not part:
            return
        start = ex.rank * self.slice
        shown = slice(start, start + len(part))
        own = self.tensor[part.start : part.stop]
        parts = [own if r == ex.rank else self.boxes[parity ^ 1][r][shown] for r in range(ex.size)]
        result = self.boxes[parity][ex.rank][shown]
        tree.reduce_into(result, parts, self.call.op, [s[: len(part)] for s in self.scratch])
        if self.call.root in (-1, ex.rank):
            own.copy_(result)


def reduce_scatter(ex: Exchange, inputs: list[Tensor], output: Tensor, call: Call, deadline: Deadline) -> None:
    """Everyone shows a piece for every rank, each combines its own."""
    item = output.element_size()
    room = _piece(ex.layout.outbox_bytes, ex.size) // item
    boxes = ex.typed(output.dtype)
    scratch = ex.scratch(output.dtype, min(room, call.numel), tree.scratch_count(ex.size))
    addresses = [t.data_ptr() for t in inputs]
    start = ex.rank * room
    for number, chunk in enumerate(_chunks(call.numel, room)):
        parity = ex.parity ^ (number > 0)
        for rank in ex.others:
            ex.show(addresses[rank] + chunk.start * item, len(chunk) * item, rank * room * item, parity=parity)
        _meet(ex, number, call, deadline)
        if chunk:
            own = inputs[ex.rank][chunk.start : chunk.stop]
            mine = slice(start, start + len(chunk))
            parts = [own if r == ex.rank else boxes[parity][r][mine] for r in range(ex.size)]
            tree.reduce_into(output[chunk.start : chunk.stop], parts, call.op, [s[: len(chunk)] for s in scratch])
    ex.end()


def all_to_all(ex: Exchange, inputs: list[Span], outputs: list[Span], call: Call, deadline: Deadline) -> None:
    """Everyone shows a piece for every rank, each takes those meant for it; pieces may differ in size.

    An outbox starts with the rank's table of sizes, so all ranks know how many rounds there are, and all find the same
    disagreement.
    """
    table = struct.Struct(f"<{2 * ex.size}Q")
    head = table.size + -table.size % ALIGN
    room = _piece(ex.layout.outbox_bytes - head, ex.size)
    sizes = [size for _, size in inputs] + [size for _, size in outputs]
    table.pack_into(ex.outbox_view(ex.parity), 0, *sizes)
    _show_pieces(ex, inputs, 0, room, head)
    ex.first_round(call, deadline)
    tables = [table.unpack_from(ex.outbox_view(ex.parity, r)) for r in range(ex.size)]
    _check_sizes(ex, tables)
    if outputs[ex.rank][0] != inputs[ex.rank][0]:
        memmove(outputs[ex.rank][0], *inputs[ex.rank])
    rounds = max(1, max(-(-size // room) for row in tables for size in row))
    for number in range(rounds):
        if number:
            _show_pieces(ex, inputs, number, room, head)
            ex.next_round()
        for rank in ex.others:
            address, size = outputs[rank]
            count = min(room, size - number * room)
            if count > 0:
                ex.take(address + number * room, rank, count, head + ex.rank * room)
    ex.end()


def _show_pieces(ex: Exchange, inputs: list[Span], number: int, room: int, head: int) -> None:
    parity = ex.parity ^ (number > 0)
    for rank in ex.others:
        address, size = inputs[rank]
        count = min(room, size - number * room)
        if count > 0:
            ex.show(address + number * room, count, head + rank * room, parity=parity)


def _check_sizes(ex: Exchange, tables: list[tuple[int, ...]]) -> None:
    for source in range(ex.size):
        for to in range(ex.size):
            sent, expected = tables[source][to], tables[to][ex.size + source]
            if sent != expected:
                ex.end()
                raise Mismatch(
                    f"{ex.where()}: {ex.peers.label(source)} sends {sent} bytes to {ex.peers.label(to)}, "
                    f"which expects {expected}: its output_split_sizes do not fit the other's input_split_sizes"
                )
