"""The exact step between hosts: sums leave, are updated and return while backward still computes others.

A section (sectioned_step.py) is complete early; its slices are sent, added up and updated in pieces. See
exchange/traffic.py for the protocol.

Buffers travel by themselves, beside the last weights: see exchange/whole_sums.py.

What needs the whole gradient first (clipping, an optimizer that looks at whole tensors, hooks around an optimizer's
step) leaves the way back as it is: then sums alone travel during backward.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lockstep.exchange.traffic import Courier, Parcel, cut_pieces
from lockstep.strategies import sliced_optimizer as sliced
from lockstep.strategies.base import LaneLoss, Training
from lockstep.strategies.lane_slots import LaneSlot
from lockstep.strategies.sectioned_step import SectionedWorker

if TYPE_CHECKING:
    from lockstep.exchange.hosts import ArenaPerHost
    from lockstep.strategies.clock import Clock

PIECE = 2 * sliced.CHUNK
"""Elements of a slice that are sent, added up and updated at a time."""


class OverlappedWorker(SectionedWorker):
    """One worker whose exchange has traffic during backward."""

    exchange: ArenaPerHost

    def __init__(self, training: Training, exchange: ArenaPerHost, device: str) -> None:
        super().__init__(training, exchange, device)
        lengths = [(one, self.layout.sections[one].numel // exchange.workers) for one in self._order]
        self._pieces = cut_pieces(lengths, PIECE)
        self._chunks_of = {piece: self._chunks_in(piece) for piece in self._pieces}
        self._traffic = exchange.traffic(self._partials, self._weights, self._pieces)
        count = self.layout.buffers.pack_others().numel()
        used = [section.used for section in self.layout.buffers.sections]
        self._buffers = exchange.whole_sums(self._buffer_partials, used, count)
        self._courier: Courier | None = None
        self._told = threading.Event()
        self._numbers = torch.empty(0)
        self._updating = 0.0
        """Seconds in the optimizer after backward, in this step."""

    def _chunks_in(self, piece: Parcel) -> list[sliced.Chunk]:
        start = self.parts[piece.section].start
        low, high = start + piece.low, start + piece.high
        return [chunk for chunk in self.chunks if chunk.section == piece.section and low <= chunk.start < high]

    def _fold_lanes(self, run: Callable[[int], LaneLoss | None], table: Tensor, clock: Clock) -> Tensor:
        others = super()._fold_lanes(run, table, clock)
        first = self._traffic.first_left
        clock.hidden = max(0.0, time.perf_counter() - first) if first is not None else 0.0
        return others

    def _begin(self, slot: LaneSlot, table: Tensor, loss: LaneLoss | None) -> None:
        """Let the traffic begin."""
        known = table.clone()  # the courier's own
        if loss is not None:
            loss.note(known[slot.lane])
        self._updating = 0.0
        self._told.clear()
        self._traffic.begin()
        self._buffers.begin()
        self._updates = not self._needs_whole_gradient
        self._courier = Courier(lambda: self._carry(known))

    def _complete(self, section: int) -> None:
        self._traffic.complete(section)

    def _abandon(self) -> None:
        if self._courier is not None:  # else nothing has left, and the next step begins as this one did
            self._traffic.abandon()

    def _carry(self, table: Tensor) -> None:
        """Be the courier: learn the weight of all lanes, then take piece by piece as it comes."""
        self._numbers = self.exchange.sum_disjoint(table.to(self.device)).cpu()
        self._told.set()
        weight = sum(self._numbers[:, 1].tolist())
        for piece in self._pieces:
            parts = self._traffic.arrived(piece)
            gradient = self.exchange.add_up_all(parts, weight)
            if self._updates:
                self._traffic.give(piece, self._update_piece(piece, gradient, parts[1]))
                self._traffic.take(piece)

    def _update_piece(self, piece: Parcel, gradient: Tensor, spare: Tensor) -> Tensor:
        """Return the new weights of a piece: in place, or while weights may still be read in `spare`."""
        began = time.perf_counter()
        own = self.slices[piece.section][piece.low : piece.high]
        over = self._traffic.over.is_set()
        new = own if over else spare.copy_(own)
        chunks, first = self._chunks_of[piece], self.parts[piece.section].start + piece.low
        for chunk in chunks:
            where = slice(chunk.start - first, chunk.stop - first)
            chunk.weight.data, chunk.weight.grad = new[where], gradient[where]
        sliced.step_chunks(self.optimizer, self.layout.sections[piece.section].key[0], chunks)  # type: ignore[index]
        for chunk in chunks:
            chunk.weight.data, chunk.weight.grad = own[chunk.start - first : chunk.stop - first], None
        if over:
            self._updating += time.perf_counter() - began
        return new

    def _tell(self, table: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
        """Step 2: the lanes' numbers have been told; buffers leave now, and the host's workers are waited for.

        The other buffers are there when all weights are.
        """
        assert self._courier is not None
        self._courier.wait_for(self._told)
        for section in self._rest:
            self._traffic.complete(section)
        self.exchange.barrier()
        self._buffers.leave(self._own_others(others))
        self._traffic.everyone_is_done()
        return self._numbers, self._buffers.numbers

    def _reduce(self, weight: float) -> list[sliced.GradientRun]:
        """Step 3: wait for the courier; where it updates too, nothing is left to do."""
        assert self._courier is not None
        self._traffic.place()
        self._courier.finish()
        self._courier = None
        if self._updates:
            return []
        return [sliced.GradientRun(n, part.start, self._traffic.total(n)) for n, part in enumerate(self.parts)]

    def _update(self, reduced: list[sliced.GradientRun], clock: Clock) -> None:
        if not self._updates:
            super()._update(reduced, clock)
            return
        clock.move_tail("optimizer", self._updating)

    def _share(self, lanes: int) -> None:
        """Step 5: all that travelled is put in place."""
        self._buffers.arrive()
        self._buffers.put_means(0, self._buffer_means, lanes)
        self._traffic.settle()
        if not self._updates:
            self._share_weights()
