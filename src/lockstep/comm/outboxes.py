"""A group's segment as one rank sees it: outboxes, and rounds that check that all ranks are in the same collective."""

from __future__ import annotations

from ctypes import memmove
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lockstep.comm import wire
from lockstep.comm.combine import Combiner
from lockstep.comm.libc import address_of
from lockstep.comm.segment_layout import Layout
from lockstep.comm.sync import Deadline, Rounds
from lockstep.comm.wire import LINE_BYTES, Call
from lockstep.errors import Mismatch

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable

    from lockstep.comm.liveness import Liveness


class Outboxes:
    """Runs the rounds of one collective after the other; used by one thread at a time."""

    def __init__(self, memory: mmap.mmap, layout: Layout, rank: int, *, liveness: Liveness) -> None:
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
        self._own_line = [layout.line(rank, p) for p in parities]
        self._lines = [view[layout.line(0, p) :][: self.size * LINE_BYTES] for p in parities]
        whole = torch.frombuffer(memory, dtype=torch.uint8)
        self._bytes = [
            [whole[layout.outbox(r, p) : layout.outbox(r, p) + layout.outbox_bytes] for r in ranks] for p in parities
        ]
        self._typed: dict[torch.dtype, list[list[Tensor]]] = {}
        self.combiner = Combiner(self.size)
        self._call = Call(wire.Kind.barrier)
        self._deadline = Deadline(0)

    @property
    def parity(self) -> int:
        """Return which outbox the current round uses."""
        return self.rounds.parity

    def first_round(self, call: Call, deadline: Deadline) -> None:
        """Show the call, meet, and raise on every rank if the calls differ."""
        self._deadline = deadline
        self.round_of(call, call.line(), lambda: deadline)

    def round_of(self, call: Call, line: bytes, deadline: Callable[[], Deadline]) -> None:
        """Do the same for a call whose line is known, and whose deadline is needed only if somebody is late."""
        self.sequence = sequence = self.sequence + 1
        self._call = call
        parity = self.rounds.parity
        line = wire.numbered(line, sequence)
        at = self._own_line[parity]
        self._view[at : at + LINE_BYTES] = line
        self.rounds.meet(deadline, self.where)
        if self._lines[parity].tobytes() != line * self.size:
            self._raise_mismatch(parity)

    def round_after(self, done: int, call: Call, deadline: Deadline) -> None:
        """Meet for the next round of a call, after so many are done."""
        if done == 0:
            self.first_round(call, deadline)
        else:
            self.next_round()

    def next_round(self) -> None:
        """End the reading of one round, and meet for the next, whose data was shown in the other parity."""
        self.rounds.turn()
        self.rounds.meet(lambda: self._deadline, self.where)

    def end(self) -> None:
        """End the reading of a collective's last round."""
        self.rounds.turn()

    def where(self) -> str:
        """Name the collective that this rank is in."""
        return f"{self.liveness.label(self.rank)}: {self._call.text(self.sequence)}"

    def _raise_mismatch(self, parity: int) -> None:
        self.end()  # all ranks met and all raise, so they are still in step
        said = []
        for rank in range(self.size):
            line = self._lines[parity][rank * LINE_BYTES :][:LINE_BYTES].tobytes()
            call, sequence = wire.unpack(line)
            said.append((self.liveness.label(rank), call.text(sequence)))
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

    def rows(self, dtype: torch.dtype, count: int, parity: int) -> Tensor:
        """Return the first `count` elements of every rank's outbox: a row each."""
        boxes = self.typed(dtype)[parity]
        step = (self.outbox[parity][1] - self.outbox[parity][0]) // dtype.itemsize if self.size > 1 else count
        return boxes[0].as_strided((self.size, count), (step, 1))

    def typed(self, dtype: torch.dtype) -> list[list[Tensor]]:
        """Return all outboxes as tensors of a dtype, by parity and rank."""
        found = self._typed.get(dtype)
        if found is None:
            found = self._typed[dtype] = [[t.view(dtype) for t in row] for row in self._bytes]
        return found
