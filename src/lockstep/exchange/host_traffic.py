"""Sums and weights between hosts while backward computes: messages between the carriers of each slice.

See hosts.py for who carries what, and traffic.py for the order. Ranks of a host tell each other by semaphores which
sections they have completed (one for each section and reader), see [Note: memory order] in comm/libc.py.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep.comm import libc
from lockstep.exchange import whole_sums
from lockstep.exchange.traffic import Abandoned, Parcel, Traffic

if TYPE_CHECKING:
    from lockstep.comm.arena import Arena
    from lockstep.exchange.hosts import ArenaPerHost


def tag_of(section: int, *, back: bool) -> int:
    """Return the tag of a section's messages: its pieces are in order, sections are not. 0 is for the rest."""
    return whole_sums.TAG + 1 + 2 * section + back


class HostTraffic(Traffic):
    """Of a rank whose exchange is `ArenaPerHost`."""

    def __init__(
        self,
        exchange: ArenaPerHost,
        sections: Sequence[tuple[list[Tensor], list[list[Tensor]], Tensor]],
        pieces: Sequence[Parcel],
    ) -> None:
        """`sections`: of each the host's partials, the inboxes by host, and the weights."""
        super().__init__()
        self._exchange, self._sections = exchange, sections
        self._of: list[list[Parcel]] = [[] for _ in sections]
        for piece in pieces:
            self._of[piece.section].append(piece)
        self._signals = Signals(exchange.arena, len(sections))
        self._left = [threading.Event() for _ in sections]
        self._abandoned = False
        self._waiting: set[int] = set()
        """Sections that are complete here, and perhaps not on other ranks of the host."""
        self._receiving: dict[Parcel, list[dist.Work]] = {}
        self._sent: dict[Parcel, list[dist.Work]] = {}
        self._giving: list[dist.Work] = []
        self._taking: list[dist.Work] = []
        self._staged: deque[tuple[Tensor, Tensor, dist.Work | None]] = deque()
        """New weights that wait: where they belong, where they are, and what they come by."""

    def begin(self) -> None:
        """Post the receives of all pieces."""
        self.over.clear()
        self.first_left = None
        for event in self._left:
            event.clear()
        sources, me = self._exchange.sources, self._exchange.rank
        for section, pieces in enumerate(self._of):
            inboxes, tag = self._sections[section][1], tag_of(section, back=False)
            for piece in pieces:
                self._receiving[piece] = [
                    self._exchange.receive(buffer[piece.low : piece.high], source, tag)
                    for source, inbox in zip(sources, inboxes, strict=True)
                    if source != me
                    for buffer in inbox
                ]

    def complete(self, section: int) -> None:
        """Tell the host's ranks, and let leave what all of them have completed."""
        self._signals.tell(section)
        self._waiting.add(section)
        for one in [one for one in self._waiting if self._signals.all_have(one)]:
            self._leave(one)

    def everyone_is_done(self) -> None:
        """After the host's barrier: all have told of all sections."""
        for section in sorted(self._waiting):
            assert self._signals.all_have(section)
            self._leave(section)
        self.over.set()

    def _leave(self, section: int) -> None:
        """Add up over the host what this rank carries, send it, and let the courier use the own slice."""
        self._waiting.discard(section)
        self._leaves()
        exchange, made, tag = self._exchange, self._sections[section][0], tag_of(section, back=False)
        for owner in (*exchange.carried, exchange.rank):
            exchange.add_up_host([self._slice(one, owner) for one in made])
        for piece in self._of[section]:
            self._sent[piece] = [
                exchange.send(self._slice(made[position], owner)[piece.low : piece.high], owner, tag)
                for owner in exchange.carried
                for position in exchange.left_here
            ]
        self._left[section].set()

    def arrived(self, piece: Parcel) -> list[Tensor]:
        """Wait for the other hosts, then for this one."""
        _wait(self._receiving.pop(piece))
        self._left[piece.section].wait()
        if self._abandoned:
            raise Abandoned("this rank's backward failed")
        return [part[piece.low : piece.high] for part in self._parts(piece.section)]

    def total(self, section: int) -> Tensor:
        """Return the first of the parts: all were added to it."""
        return self._parts(section)[0]

    def _parts(self, section: int) -> list[Tensor]:
        made, inboxes, _ = self._sections[section]
        exchange = self._exchange
        here = [self._slice(made[position], exchange.rank) for position in exchange.left_here]
        rows = zip(exchange.sources, inboxes, strict=True)
        return [one for source, inbox in rows for one in (here if source == exchange.rank else inbox)]

    def give(self, piece: Parcel, new: Tensor) -> None:
        """Send to the carriers of the own slice on the other hosts; put it in place at the end, if it is not there."""
        exchange, tag = self._exchange, tag_of(piece.section, back=True)
        self._giving += [exchange.send(new, one, tag) for one in exchange.sources if one != exchange.rank]
        place = self._slice(self._sections[piece.section][2], exchange.rank)[piece.low : piece.high]
        if place.data_ptr() != new.data_ptr():
            self._staged.append((place, new, None))

    def take(self, piece: Parcel) -> None:
        """Receive the slices that this rank carries, in place or where their sums lay."""
        made, _, weights = self._sections[piece.section]
        _wait(self._sent.pop(piece))
        for owner in self._exchange.carried:
            place, waiting = (self._slice(one, owner)[piece.low : piece.high] for one in (weights, made[0]))
            target = place if self.over.is_set() else waiting
            work = self._exchange.receive(target, owner, tag_of(piece.section, back=True))
            if target is place:
                self._taking.append(work)
            else:
                self._staged.append((place, target, work))

    def place(self) -> None:
        """Wait for the weights that could not go in place at once, and put them there."""
        while self._staged:
            place, new, work = self._staged.popleft()
            if work is not None:
                work.wait()
            place.copy_(new)

    def settle(self) -> None:
        """Wait for all messages."""
        for piece in [*self._sent]:
            _wait(self._sent.pop(piece))
        _wait([*self._taking, *self._giving])
        self.place()
        self._taking.clear()
        self._giving.clear()

    def abandon(self) -> None:
        """Wake the courier."""
        self._abandoned = True
        for event in self._left:
            event.set()

    def _slice(self, flat: Tensor, owner: int) -> Tensor:
        length = flat.numel() // self._exchange.workers
        return flat[owner * length : (owner + 1) * length]


class Signals:
    """By which the ranks of a host learn what the others have completed, without waiting."""

    def __init__(self, arena: Arena, count: int) -> None:
        self._size, self._rank = arena.size, arena.rank
        memory = arena.shared(max(1, count * arena.size) * libc.SEMAPHORE_BYTES, torch.uint8)
        self._memory = memory  # the semaphores live as long as this
        self._first = memory.data_ptr()
        self._heard = [0] * count
        if arena.rank == 0:
            for number in range(count * arena.size):
                libc.init(self._first + number * libc.SEMAPHORE_BYTES)
        arena.barrier()

    @staticmethod
    def room(count: int, ranks: int) -> int:
        """Return how many bytes of an arena they need."""
        return count * ranks * libc.SEMAPHORE_BYTES

    def tell(self, number: int) -> None:
        """Tell every other rank of the host."""
        for reader in range(self._size):
            if reader != self._rank:
                libc.post(self._address(number, reader))

    def all_have(self, number: int) -> bool:
        """Say whether all others have told; if so, begin anew."""
        while self._heard[number] < self._size - 1:
            if libc.trywait(self._address(number, self._rank)):
                return False
            self._heard[number] += 1
        self._heard[number] = 0
        return True

    def _address(self, number: int, reader: int) -> int:
        return self._first + (number * self._size + reader) * libc.SEMAPHORE_BYTES


def _wait(pending: Sequence[dist.Work]) -> None:
    for work in pending:
        work.wait()
