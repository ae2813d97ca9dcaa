"""Every collective as a sequence of rounds over contiguous memory; see the drawing in sync.py.

A tensor here is contiguous and flat, or an address with a length: shapes, strides and lists are shm.py's concern.
"""

from __future__ import annotations

import struct
from ctypes import memmove
from typing import TYPE_CHECKING

from lockstep.comm.segment_layout import ALIGN
from lockstep.comm.wire import Call, Kind
from lockstep.errors import Mismatch

if TYPE_CHECKING:
    from torch import Tensor

    from lockstep.comm.outboxes import Outboxes
    from lockstep.comm.sync import Deadline

Span = tuple[int, int]
"""Address and bytes."""


def _chunks(total: int, step: int) -> list[range]:
    return [range(start, min(start + step, total)) for start in range(0, total, step)] or [range(0)]


def barrier(ex: Outboxes, deadline: Deadline) -> None:
    """Wait for all."""
    ex.first_round(Call(Kind.barrier), deadline)
    ex.end()


def broadcast(ex: Outboxes, span: Span, call: Call, deadline: Deadline) -> None:
    """Root shows a chunk a round, the others take it."""
    address, size = span
    root = call.root
    for number, chunk in enumerate(_chunks(size, ex.layout.outbox_bytes)):
        if ex.rank == root:
            ex.show(address + chunk.start, len(chunk), parity=ex.parity ^ (number > 0))
        ex.round_after(number, call, deadline)
        if ex.rank != root:
            ex.take(address + chunk.start, root, len(chunk))
    ex.end()


def all_gather(ex: Outboxes, source: Span, outputs: list[Span], call: Call, deadline: Deadline) -> None:
    """Everyone shows a chunk a round; those with outputs take all of them. A gather has outputs at its root only."""
    address, size = source
    for number, chunk in enumerate(_chunks(size, ex.layout.outbox_bytes)):
        ex.show(address + chunk.start, len(chunk), parity=ex.parity ^ (number > 0))
        ex.round_after(number, call, deadline)
        if outputs:
            for rank in ex.others:
                ex.take(outputs[rank][0] + chunk.start, rank, len(chunk))
    if outputs and outputs[ex.rank][0] != address:
        memmove(outputs[ex.rank][0], address, size)
    ex.end()


def scatter(ex: Outboxes, inputs: list[Span], output: Span, call: Call, deadline: Deadline) -> None:
    """Root shows a piece for every rank, each takes its own."""
    address, size = output
    room = ex.layout.piece()
    for number, chunk in enumerate(_chunks(size, room)):
        if ex.rank == call.root:
            for rank in ex.others:
                ex.show(inputs[rank][0] + chunk.start, len(chunk), rank * room, parity=ex.parity ^ (number > 0))
        ex.round_after(number, call, deadline)
        if ex.rank != call.root:
            ex.take(address + chunk.start, call.root, len(chunk), ex.rank * room)
    if ex.rank == call.root and inputs[ex.rank][0] != address:
        memmove(address, inputs[ex.rank][0], size)
    ex.end()


def small_all_reduce(ex: Outboxes, tensor: Tensor, call: Call, deadline: Deadline) -> None:
    """Everyone shows everything, and combines everything itself; small.py does the same for the commonest calls.

    With a root, only that combines. Larger tensors: large.py.
    """
    ex.show(tensor.data_ptr(), tensor.nbytes)
    ex.first_round(call, deadline)
    if call.numel and call.root in (-1, ex.rank):
        ex.combiner.into(tensor, list(ex.rows(tensor.dtype, call.numel, ex.parity)), call.op)
    ex.end()


def reduce_scatter(ex: Outboxes, inputs: list[Tensor], output: Tensor, call: Call, deadline: Deadline) -> None:
    """Everyone shows a piece for every rank, each combines its own."""
    item = output.element_size()
    room = ex.layout.piece() // item
    boxes = ex.typed(output.dtype)
    addresses = [t.data_ptr() for t in inputs]
    start = ex.rank * room
    for number, chunk in enumerate(_chunks(call.numel, room)):
        parity = ex.parity ^ (number > 0)
        for rank in ex.others:
            ex.show(addresses[rank] + chunk.start * item, len(chunk) * item, rank * room * item, parity=parity)
        ex.round_after(number, call, deadline)
        if chunk:
            own = inputs[ex.rank][chunk.start : chunk.stop]
            mine = slice(start, start + len(chunk))
            parts = [own if r == ex.rank else boxes[parity][r][mine] for r in range(ex.size)]
            ex.combiner.into(output[chunk.start : chunk.stop], parts, call.op)
    ex.end()


def all_to_all(ex: Outboxes, inputs: list[Span], outputs: list[Span], call: Call, deadline: Deadline) -> None:
    """Everyone shows a piece for every rank, each takes those meant for it; pieces may differ in size.

    An outbox starts with the rank's table of sizes, so all ranks know how many rounds there are, and all find the same
    disagreement.
    """
    table = struct.Struct(f"<{2 * ex.size}Q")
    head = table.size + -table.size % ALIGN
    room = ex.layout.piece(head)
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


def _show_pieces(ex: Outboxes, inputs: list[Span], number: int, room: int, head: int) -> None:
    parity = ex.parity ^ (number > 0)
    for rank in ex.others:
        address, size = inputs[rank]
        count = min(room, size - number * room)
        if count > 0:
            ex.show(address + number * room, count, head + rank * room, parity=parity)


def _check_sizes(ex: Outboxes, tables: list[tuple[int, ...]]) -> None:
    for source in range(ex.size):
        for to in range(ex.size):
            sent, expected = tables[source][to], tables[to][ex.size + source]
            if sent != expected:
                ex.end()
                raise Mismatch(
                    f"{ex.where()}: {ex.liveness.label(source)} sends {sent} bytes to {ex.liveness.label(to)}, "
                    f"which expects {expected}: its output_split_sizes do not fit the other's input_split_sizes"
                )
