"""One sender's stream of messages to one receiver: a ring of cells and two counting flags.

      sender                    filled        free                  receiver
    1 take one of `free`         0             4
    2 write a cell                             3
    3 post `filled`              1             3                  4 take one of `filled`
      (and ring the bell)        0             3                  5 read the cell
                                 0             4                  6 post `free` (and ring the sender's bell)

A message is a head (tag, bytes, dtype) and its bytes, cut over as many cells as it takes. Both sides use the cells in
turn, so their numbers need not be told.
"""

from __future__ import annotations

import struct
from ctypes import memmove
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lockstep.comm import libc
from lockstep.comm.libc import SEMAPHORE_BYTES
from lockstep.comm.segment_layout import CELLS, PAGE, Layout

if TYPE_CHECKING:
    from collections.abc import Callable

_HEAD: Final = struct.Struct("<qQQ")
HEAD_BYTES: Final = 64


@dataclass(frozen=True)
class Head:
    """What a message says about itself."""

    tag: int
    size: int
    dtype: int


class Ring:
    """The parts that both ends of a channel share."""

    def __init__(self, view: memoryview, base: int, layout: Layout, *, source: int, to: int) -> None:
        start = layout.channel(source, to)
        self.filled, self.free = base + start, base + start + SEMAPHORE_BYTES
        self.room = layout.cell_bytes
        first = start + PAGE
        self.cells = [base + first + i * self.room for i in range(CELLS)]
        self.heads = [view[first + i * self.room :][:HEAD_BYTES] for i in range(CELLS)]
        self.turn = 0

    def step(self) -> None:
        """Go on to the next cell."""
        self.turn = (self.turn + 1) % CELLS


class Sender:
    """The sending end."""

    def __init__(self, ring: Ring, bell: int) -> None:
        self._ring, self._bell = ring, bell

    def push(self, head: Head, address: int, sent: int) -> int:
        """Send as much of a message as fits; -1 is a message not begun. Return how far it is."""
        ring = self._ring
        while sent < head.size and libc.trywait(ring.free) == 0:  # 1
            at = 0
            if sent < 0:  # 2
                _HEAD.pack_into(ring.heads[ring.turn], 0, head.tag, head.size, head.dtype)
                at, sent = HEAD_BYTES, 0
            count = min(ring.room - at, head.size - sent)
            memmove(ring.cells[ring.turn] + at, address + sent, count)
            sent += count
            ring.step()
            libc.post(ring.filled)  # 3
            libc.post(self._bell)
            if sent == head.size:
                break
        return sent


class Receiver:
    """The receiving end: gives the head of a new message away and is told where its bytes should go."""

    def __init__(self, ring: Ring, bell: int) -> None:
        self._ring, self._bell = ring, bell
        self._left = 0
        self._to = 0
        self._ended: Callable[[], None] = _nothing

    def pull(self, begin: Callable[[Head], tuple[int, Callable[[], None]]]) -> bool:
        """Take the cells that are there; return whether there were any."""
        ring = self._ring
        moved = False
        while libc.trywait(ring.filled) == 0:  # 4
            moved = True
            at = 0
            if self._left == 0:
                head = Head(*_HEAD.unpack_from(ring.heads[ring.turn]))
                self._to, self._ended = begin(head)
                self._left, at = head.size, HEAD_BYTES
            count = min(ring.room - at, self._left)
            memmove(self._to, ring.cells[ring.turn] + at, count)  # 5
            self._to += count
            self._left -= count
            ring.step()
            libc.post(ring.free)  # 6
            libc.post(self._bell)
            if self._left == 0:
                self._ended()
        return moved


def _nothing() -> None:
    pass
