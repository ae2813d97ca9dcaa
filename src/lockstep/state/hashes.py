"""Hashes of the state, made by its holders at the same time, and the same whoever they are.

1  every rank knows from the table which blocks there are, and who holds which elements of each
2  of a block that is cut, the holder of its first element gets the rest from the others          (messages)
3  each rank hashes the blocks that begin in its own elements
4  all ranks get all blocks' hashes                                                               (all-gather)
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep.comm.broadcast import all_gather_bytes
from lockstep.digest import BLOCK, Described, block_hash, digest, tensor_hash
from lockstep.state.table import StateTable, agree, dtype_name

if TYPE_CHECKING:
    from lockstep.comm.group import Group
    from lockstep.state.holdings import Holding

RECORD = struct.Struct("<32sdd")
"""Of a block: its hash, the sum of its elements, and the sum of their squares."""


class Fragment(NamedTuple):
    """Elements of a block that one rank holds."""

    start: int
    """The first, counted within the tensor."""
    stop: int
    """One past the last."""
    rank: int
    """Who holds them, by its position in the group."""
    piece: int
    """The first element of the holding that they are part of."""


class Block(NamedTuple):
    """A block of a tensor, and who holds what of it."""

    entry: int
    """Which tensor, in the table's order."""
    fragments: tuple[Fragment, ...]
    """In order; the first one's rank hashes the block."""

    @property
    def hasher(self) -> int:
        """The rank that hashes it."""
        return self.fragments[0].rank


class Summary(NamedTuple):
    """A tensor's hash, and two numbers that say how far apart two tensors of different hashes are."""

    hash: str
    mean: float | None
    """None: it is no number, or was not asked for."""
    norm: float | None


def blocks(table: StateTable) -> Iterator[Block]:
    """Yield the blocks of all tensors in order."""
    for number, (entry, pieces) in enumerate(zip(table.entries, table.pieces, strict=True)):
        for start in range(0, entry.numel, BLOCK):
            stop = min(start + BLOCK, entry.numel)
            inside = (Fragment(max(start, p.start), min(stop, p.stop), p.rank, p.start) for p in pieces)
            yield Block(number, tuple(one for one in inside if one.start < one.stop))


def state_digest(group: Group, holdings: Sequence[Holding]) -> str:
    """Return the digest of the state that the ranks of a group hold together; all of them call this together."""
    return digest(describe(group, agree(group, holdings), holdings))


def describe(group: Group, table: StateTable, holdings: Sequence[Holding]) -> list[Described]:
    """Return what the digest is made of; all ranks of the group call this together."""
    hashed = summaries(group, table, holdings, numbers=False)
    return [Described(e.name, dtype_name(e.dtype), e.shape, hashed[e.name].hash) for e in table.entries]


def summaries(group: Group, table: StateTable, holdings: Sequence[Holding], *, numbers: bool) -> dict[str, Summary]:
    """Return hash, mean and norm of every tensor on every rank; all ranks of the group call this together."""
    plan = list(blocks(table))
    mine = b"".join(
        _record(content, numbers) for block, content in _contents(group, table, plan, holdings) if content is not None
    )
    rows = [RECORD.iter_unpack(row) for row in all_gather_bytes(mine, group)]
    records: list[list[tuple[bytes, float, float]]] = [[] for _ in table.entries]
    for block in plan:
        records[block.entry].append(next(rows[block.hasher]))
    return {
        entry.name: _summary(own, entry.numel if numbers and not entry.dtype.is_complex else 0)
        for entry, own in zip(table.entries, records, strict=True)
    }


def _contents(
    group: Group, table: StateTable, plan: Sequence[Block], holdings: Sequence[Holding]
) -> Iterator[tuple[Block, Tensor | None]]:
    """Yield every block with its elements where this rank hashes it; pieces of cut blocks go to who hashes them.

    All ranks go through the blocks in one order, so a message that is sent is the next that is received.
    """
    held = {(one.name, one.start): one for one in holdings}
    for block in plan:
        entry, parts = table.entries[block.entry], []
        for fragment in block.fragments:
            if fragment.rank == group.rank:
                parts.append(held[entry.name, fragment.piece].read(fragment.start, fragment.stop))
                if block.hasher != group.rank:
                    dist.send(_as_bytes(parts[-1].to(group.device)), group=group.process_group, group_dst=block.hasher)
            elif block.hasher == group.rank:
                part = torch.empty(fragment.stop - fragment.start, dtype=entry.dtype, device=group.device)
                dist.recv(_as_bytes(part), group=group.process_group, group_src=fragment.rank)
                parts.append(part)
        mine = block.hasher == group.rank
        yield block, _joined(parts, group) if mine else None


def _joined(parts: list[Tensor], group: Group) -> Tensor:
    # A process may hold parts of a tensor on several devices.
    return parts[0] if len(parts) == 1 else torch.cat([part.to(group.device) for part in parts])


def _record(content: Tensor, numbers: bool) -> bytes:
    values = content.detach().cpu().contiguous()
    total = squares = 0.0
    if numbers and not values.is_complex():
        wide = values.double().numpy()  # numpy: its sums do not depend on the number of threads
        total, squares = float(wide.sum()), float((wide * wide).sum())
    return RECORD.pack(block_hash(_as_bytes(values).numpy().data), total, squares)


def _summary(records: Sequence[tuple[bytes, float, float]], numel: int) -> Summary:
    hashed = tensor_hash(record[0] for record in records)
    if not numel:
        return Summary(hashed, None, None)
    sums, squares = [record[1] for record in records], [record[2] for record in records]
    if not all(map(math.isfinite, (*sums, *squares))):
        return Summary(hashed, None, None)
    return Summary(hashed, math.fsum(sums) / numel, math.sqrt(math.fsum(squares)))


def _as_bytes(flat: Tensor) -> Tensor:
    return flat.contiguous().view(torch.uint8)
