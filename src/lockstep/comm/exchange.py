"""A group's segment as one rank sees it: outboxes, and rounds that check that all ranks are in the same collective."""

from __future__ import annotations

from ctypes import memmove
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lockstep.comm import tree, wire
from lockstep.comm.layout import DESCRIPTOR_BYTES, Layout
from lockstep.comm.libc import address_of
from lockstep.comm.sync import Deadline, Rounds
from lockstep.comm.wire import Call
from lockstep.errors import Mismatch

if TYPE_CHECKING:
    import mmap

    from lockstep.comm.peers import Peers

_VIEWS_KEPT = 256


class Exchange:
    """Runs the rounds of one collective after the other; used by one thread at a time."""

    def __init__(self, memory: mmap.mmap, layout: Layout, rank: int, *, peers: Peers) -> None:
        self.layout, self.rank, self.size = layout, rank, layout.size
        self.others = [r for r in range(self.size) if r != rank]
        self.peers = peers
        self.sequence = 0
        view = memoryview(memory)
        self._view = view
        base = address_of(view)
        self.rounds = Rounds(base, layout, rank, peers=peers)
        ranks, parities = range(self.size), (0, 1)
        self.outbox = [[base + layout.outbox(r, p) for r in ranks] for p in parities]
        """Addresses, by parity and rank."""
        starts = [[layout.descriptor(r, p) for r in ranks] for p in parities]
        self._descriptor_at = starts
        # Compared as eight words: a comparison by bytes takes eight times as long.
        self._descriptors = [[view[s : s + DESCRIPTOR_BYTES].cast("Q") for s in row] for row in starts]
        whole = torch.frombuffer(memory, dtype=torch.uint8)
        self._bytes = [
            [whole[layout.outbox(r, p) : layout.outbox(r, p) + layout.outbox_bytes] for r in ranks] for p in parities
        ]
        self._typed: dict[torch.dtype, list[list[Tensor]]] = {}
        self._heads: dict[tuple[torch.dtype, int, int], tuple[list[Tensor], list[Tensor]]] = {}
        self._scratch = torch.empty(0, dtype=torch.uint8)
        self._call = Call(wire.Kind.barrier)
        self._deadline = Deadline(0)

    @property
    def parity(self) -> int:
        """Return which outbox the current round uses."""
        return self.rounds.parity

    def first_round(self, call: Call, deadline: Deadline) -> None:
        """Show the call, meet, and raise on every rank if the calls differ."""
        self.sequence += 1
        self._call, self._deadline = call, deadline
        parity = self.rounds.parity
        call.pack_into(self._view, self._descriptor_at[parity][self.rank], self.sequence)
        self.rounds.meet(deadline, self.where)
        row = self._descriptors[parity]
        mine = row[self.rank]
        for other in self.others:
            if row[other] != mine:
                self._raise_mismatch(parity)

    def next_round(self) -> None:
        """End the reading of one round, and meet for the next, whose data was shown in the other parity."""
        self.rounds.turn()
        self.rounds.meet(self._deadline, self.where)

    def end(self) -> None:
        """End the reading of a collective's last round."""
        self.rounds.turn()

    def where(self) -> str:
        """Name the collective that this rank is in."""
        return f"{self.peers.label(self.rank)}: {self._call.text(self.sequence)}"

    def _raise_mismatch(self, parity: int) -> None:
        self.end()  # all ranks met and all raise, so they are still in step
        said = []
        for rank in range(self.size):
            call, sequence = wire.unpack(self._view, self._descriptor_at[parity][rank])
            said.append((self.peers.label(rank), call.text(sequence)))
        raise Mismatch(wire.mismatch(said))

    def show(self, source: int, count: int, at: int = 0, *, parity: int | None = None) -> None:
        """Copy `count` bytes from an address into this rank's outbox."""
        if count:
            memmove(self.outbox[self.parity if parity is None else parity][self.rank] + at, source, count)

    def take(self, to: int, rank: int, count: int, at: int = 0) -> None:
        """Copy `count` bytes out of a rank's outbox to an address."""
        if count:
            memmove(to, self.outbox[self.parity][rank] + at, count)

    def outbox_view(self, parity: int, rank: int | None = None) -> memoryview:
        """Return a rank's outbox as bytes; this rank's own if none is named."""
        start = self.layout.outbox(self.rank if rank is None else rank, parity)
        return self._view[start : start + self.layout.outbox_bytes]

    def heads(self, dtype: torch.dtype, count: int, parity: int) -> tuple[list[Tensor], list[Tensor]]:
        """Return the first `count` elements of every rank's outbox, and scratch buffers to combine them."""
        key = (dtype, count, parity)
        found = self._heads.get(key)
        if found is None:
            if len(self._heads) >= _VIEWS_KEPT:
                self._heads.clear()
            parts = [t[:count] for t in self.typed(dtype)[parity]]
            scratch = [torch.empty(count, dtype=dtype) for _ in range(tree.scratch_count(self.size))]
            found = self._heads[key] = (parts, scratch)
        return found

    def typed(self, dtype: torch.dtype) -> list[list[Tensor]]:
        """Return all outboxes as tensors of a dtype, by parity and rank."""
        found = self._typed.get(dtype)
        if found is None:
            found = self._typed[dtype] = [[t.view(dtype) for t in row] for row in self._bytes]
        return found

    def scratch(self, dtype: torch.dtype, count: int, buffers: int) -> list[Tensor]:
        """Return private buffers for the inner nodes of the tree."""
        if buffers == 0:
            return []
        need = count * dtype.itemsize
        need += -need % 64
        if self._scratch.numel() < need * buffers:
            self._scratch = torch.empty(need * buffers, dtype=torch.uint8)
        return [self._scratch[i * need : i * need + count * dtype.itemsize].view(dtype) for i in range(buffers)]
