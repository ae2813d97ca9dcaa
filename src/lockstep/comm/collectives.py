"""Every collective as a sequence of rounds over contiguous memory; see the diagram in sync.py.

A tensor here is contiguous and flat, or an address with a length; shm.py handles shapes, strides and lists.
"""

from __future__ import annotations

import struct
from ctypes import memmove
from typing import TYPE_CHECKING

from lockstep.comm.segment_layout import ALIGN
from lockstep.comm.wire import Call, CollectiveKind
from lockstep.errors import Mismatch

if TYPE_CHECKING:
    from torch import Tensor

    from lockstep.comm.outboxes import Outboxes
    from lockstep.comm.sync import Deadline

Span = tuple[int, int]
"""An address and a number of bytes."""


def _chunks(total: int, step: int) -> list[range]:
    return [range(start, min(start + step, total)) for start in range(0, total, step)] or [range(0)]


def barrier(outboxes: Outboxes, deadline: Deadline) -> None:
    """Wait for all ranks."""
    outboxes.first_round(Call(CollectiveKind.barrier), deadline)
    outboxes.end()


def broadcast(outboxes: Outboxes, span: Span, call: Call, deadline: Deadline) -> None:
    """In each round the root writes a chunk to its outbox, and the others read it."""
    address, size = span
    root = call.root
    for number, chunk in enumerate(_chunks(size, outboxes.layout.outbox_bytes)):
        if outboxes.rank == root:
            outboxes.put(address + chunk.start, len(chunk), parity=outboxes.parity ^ (number > 0))
        outboxes.round_after(number, call, deadline)
        if outboxes.rank != root:
            outboxes.get(address + chunk.start, root, len(chunk))
    outboxes.end()


def all_gather(outboxes: Outboxes, source: Span, outputs: list[Span], call: Call, deadline: Deadline) -> None:
    """In each round every rank writes a chunk; ranks with outputs read all of them. In a gather that is the root."""
    address, size = source
    for number, chunk in enumerate(_chunks(size, outboxes.layout.outbox_bytes)):
        outboxes.put(address + chunk.start, len(chunk), parity=outboxes.parity ^ (number > 0))
        outboxes.round_after(number, call, deadline)
        if outputs:
            for rank in outboxes.others:
                outboxes.get(outputs[rank][0] + chunk.start, rank, len(chunk))
    if outputs and outputs[outboxes.rank][0] != address:
        memmove(outputs[outboxes.rank][0], address, size)
    outboxes.end()


def scatter(outboxes: Outboxes, inputs: list[Span], output: Span, call: Call, deadline: Deadline) -> None:
    """In each round the root writes a piece for every rank, and each rank reads its own."""
    address, size = output
    room = outboxes.layout.piece()
    for number, chunk in enumerate(_chunks(size, room)):
        if outboxes.rank == call.root:
            for rank in outboxes.others:
                outboxes.put(
                    inputs[rank][0] + chunk.start, len(chunk), rank * room, parity=outboxes.parity ^ (number > 0)
                )
        outboxes.round_after(number, call, deadline)
        if outboxes.rank != call.root:
            outboxes.get(address + chunk.start, call.root, len(chunk), outboxes.rank * room)
    if outboxes.rank == call.root and inputs[outboxes.rank][0] != address:
        memmove(address, inputs[outboxes.rank][0], size)
    outboxes.end()


def small_all_reduce(outboxes: Outboxes, tensor: Tensor, call: Call, deadline: Deadline) -> None:
    """Every rank writes its whole tensor and combines all of them itself; small.py is faster for the commonest calls.

    With a root, only the root combines. Larger tensors: large.py.
    """
    outboxes.put(tensor.data_ptr(), tensor.nbytes)
    outboxes.first_round(call, deadline)
    if call.numel and call.root in (-1, outboxes.rank):
        outboxes.combiner.into(tensor, list(outboxes.rows(tensor.dtype, call.numel, outboxes.parity)), call.op)
    outboxes.end()


def reduce_scatter(outboxes: Outboxes, inputs: list[Tensor], output: Tensor, call: Call, deadline: Deadline) -> None:
    """In each round every rank writes a piece for every rank, and each rank combines its own."""
    item = output.element_size()
    room = outboxes.layout.piece() // item
    boxes = outboxes.typed(output.dtype)
    addresses = [t.data_ptr() for t in inputs]
    start = outboxes.rank * room
    for number, chunk in enumerate(_chunks(call.numel, room)):
        parity = outboxes.parity ^ (number > 0)
        for rank in outboxes.others:
            outboxes.put(addresses[rank] + chunk.start * item, len(chunk) * item, rank * room * item, parity=parity)
        outboxes.round_after(number, call, deadline)
        if chunk:
            own = inputs[outboxes.rank][chunk.start : chunk.stop]
            mine = slice(start, start + len(chunk))
            parts = [own if r == outboxes.rank else boxes[parity][r][mine] for r in range(outboxes.size)]
            outboxes.combiner.into(output[chunk.start : chunk.stop], parts, call.op)
    outboxes.end()


def all_to_all(outboxes: Outboxes, inputs: list[Span], outputs: list[Span], call: Call, deadline: Deadline) -> None:
    """In each round every rank writes a piece for every rank, and each rank reads its own; pieces may differ in size.

    An outbox starts with the rank's table of sizes, so all ranks know how many rounds there are, and all of them detect
    sizes that do not match.
    """
    table = struct.Struct(f"<{2 * outboxes.size}Q")
    head = table.size + -table.size % ALIGN
    room = outboxes.layout.piece(head)
    sizes = [size for _, size in inputs] + [size for _, size in outputs]
    table.pack_into(outboxes.outbox_view(outboxes.parity), 0, *sizes)
    _put_pieces(outboxes, inputs, 0, room, head)
    outboxes.first_round(call, deadline)
    tables = [table.unpack_from(outboxes.outbox_view(outboxes.parity, r)) for r in range(outboxes.size)]
    _check_sizes(outboxes, tables)
    if outputs[outboxes.rank][0] != inputs[outboxes.rank][0]:
        memmove(outputs[outboxes.rank][0], *inputs[outboxes.rank])
    rounds = max(1, max(-(-size // room) for row in tables for size in row))
    for number in range(rounds):
        if number:
            _put_pieces(outboxes, inputs, number, room, head)
            outboxes.next_round()
        for rank in outboxes.others:
            address, size = outputs[rank]
            count = min(room, size - number * room)
            if count > 0:
                outboxes.get(address + number * room, rank, count, head + outboxes.rank * room)
    outboxes.end()


def _put_pieces(outboxes: Outboxes, inputs: list[Span], number: int, room: int, head: int) -> None:
    parity = outboxes.parity ^ (number > 0)
    for rank in outboxes.others:
        address, size = inputs[rank]
        count = min(room, size - number * room)
        if count > 0:
            outboxes.put(address + number * room, count, head + rank * room, parity=parity)


def _check_sizes(outboxes: Outboxes, tables: list[tuple[int, ...]]) -> None:
    for source in range(outboxes.size):
        for to in range(outboxes.size):
            sent, expected = tables[source][to], tables[to][outboxes.size + source]
            if sent != expected:
                outboxes.end()
                sender, receiver = outboxes.liveness.label(source), outboxes.liveness.label(to)
                raise Mismatch(
                    f"{outboxes.where()}: {sender} sends {sent} bytes to {receiver}, which expects {expected} bytes: "
                    f"make output_split_sizes of {receiver} match input_split_sizes of {sender}"
                )
