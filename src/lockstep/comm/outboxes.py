"""A group's outboxes as one rank sees them, and rounds that check that all ranks are in the same collective."""

from __future__ import annotations

from ctypes import memmove
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lockstep.comm import wire
from lockstep.comm.combine import Combiner
from lockstep.comm.libc import address_of
from lockstep.comm.segment_layout import SegmentLayout
from lockstep.comm.sync import Deadline, Rounds
from lockstep.comm.wire import SIGNATURE_BYTES, Call
from lockstep.errors import Mismatch

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable

    from lockstep.comm.liveness import Liveness


class Outboxes:
    """Runs the rounds of one collective after another; used by one thread at a time."""

    def __init__(self, memory: mmap.mmap, layout: SegmentLayout, rank: int, *, liveness: Liveness) -> None:
        self.layout, self.rank, self.size = layout, rank, layout.size
        self.others = [r for r in range(self.size) if r != rank]
        self.liveness = liveness
        self.sequence = 0
        view = memoryview(memory)
        self._view = view
        base = address_of(view)
        self.rounds = Rounds(base, layout, rank, liveness=liveness)
        ranks, parities = range(self.size), (0, 1)
        self.outbox = [[base + layout.outbox(r, p) for r in ranks] for p in parities]
        """Addresses, by parity and rank."""
        self._own_signature = [layout.signature(rank, p) for p in parities]
        self._signatures = [view[layout.signature(0, p) :][: self.size * SIGNATURE_BYTES] for p in parities]
        whole = torch.frombuffer(memory, dtype=torch.uint8)
        self._bytes = [
            [whole[layout.outbox(r, p) : layout.outbox(r, p) + layout.outbox_bytes] for r in ranks] for p in parities
        ]
        self._typed: dict[torch.dtype, list[list[Tensor]]] = {}
        self.combiner = Combiner(self.size)
        self._call = Call(wire.CollectiveKind.barrier)
        self._deadline = Deadline(0)

    @property
    def parity(self) -> int:
        """Return which outbox the current round uses."""
        return self.rounds.parity

    def first_round(self, call: Call, deadline: Deadline) -> None:
        """Write the call's signature, wait for all ranks, and raise on every rank if the signatures differ."""
        self._deadline = deadline
        self.round_of(call, call.signature(), lambda: deadline)

    def round_of(self, call: Call, signature: bytes, deadline: Callable[[], Deadline]) -> None:
        """Do the same for a call whose signature is known, and whose deadline is needed only if a rank is late."""
        self.sequence = sequence = self.sequence + 1
        self._call = call
        parity = self.rounds.parity
        signature = wire.numbered(signature, sequence)
        at = self._own_signature[parity]
        self._view[at : at + SIGNATURE_BYTES] = signature
        self.rounds.arrive_and_wait(deadline, self.where)
        if self._signatures[parity].tobytes() != signature * self.size:
            self._raise_mismatch(parity)

    def round_after(self, done: int, call: Call, deadline: Deadline) -> None:
        """Begin the next round of a call, of which `done` rounds are complete."""
        if done == 0:
            self.first_round(call, deadline)
        else:
            self.next_round()

    def next_round(self) -> None:
        """End the reading of one round and begin the next, whose data was written to the other parity."""
        self.rounds.flip_parity()
        self.rounds.arrive_and_wait(lambda: self._deadline, self.where)

    def end(self) -> None:
        """End the reading of a collective's last round."""
        self.rounds.flip_parity()

    def where(self) -> str:
        """Name the collective that this rank is in."""
        return f"{self.liveness.label(self.rank)}: {self._call.text(self.sequence)}"

    def _raise_mismatch(self, parity: int) -> None:
        self.end()  # all ranks have arrived and all raise, so they are still in step
        calls = []
        for rank in range(self.size):
            signature = self._signatures[parity][rank * SIGNATURE_BYTES :][:SIGNATURE_BYTES].tobytes()
            call, sequence = wire.unpack_signature(signature)
            calls.append((self.liveness.label(rank), call.text(sequence)))
        raise Mismatch(wire.describe_mismatch(calls))

    def put(self, source: int, count: int, at: int = 0, *, parity: int | None = None) -> None:
        """Copy `count` bytes from an address into this rank's outbox."""
        if count:
            memmove(self.outbox[self.parity if parity is None else parity][self.rank] + at, source, count)

    def get(self, to: int, rank: int, count: int, at: int = 0) -> None:
        """Copy `count` bytes out of a rank's outbox to an address."""
        if count:
            memmove(to, self.outbox[self.parity][rank] + at, count)

    def outbox_view(self, parity: int, rank: int | None = None) -> memoryview:
        """Return a rank's outbox as bytes; by default this rank's own."""
        start = self.layout.outbox(self.rank if rank is None else rank, parity)
        return self._view[start : start + self.layout.outbox_bytes]

    def rows(self, dtype: torch.dtype, count: int, parity: int) -> Tensor:
        """Return the first `count` elements of every rank's outbox, one row for each rank."""
        boxes = self.typed(dtype)[parity]
        step = (self.outbox[parity][1] - self.outbox[parity][0]) // dtype.itemsize if self.size > 1 else count
        return boxes[0].as_strided((self.size, count), (step, 1))

    def typed(self, dtype: torch.dtype) -> list[list[Tensor]]:
        """Return all outboxes as tensors of a dtype, by parity and rank."""
        outboxes = self._typed.get(dtype)
        if outboxes is None:
            outboxes = self._typed[dtype] = [[t.view(dtype) for t in row] for row in self._bytes]
        return outboxes
