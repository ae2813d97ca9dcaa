"""One sender's stream of messages to one receiver: a ring of cells and two counting semaphores.

      sender                    filled        free                  receiver
    1 wait for `free`            0             4
    2 write a cell               0             3
    3 post `filled`              1             3                  4 wait for `filled`
      (and ring the doorbell)    0             3                  5 read the cell
                                 0             4                  6 post `free` (and ring the sender's doorbell)

A message is a header (tag, bytes, dtype) and its bytes, spread over as many cells as it needs. Both sides use the cells
in the same cyclic order, so cell numbers are never sent.
"""

from __future__ import annotations

import struct
from ctypes import memmove
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lockstep.comm import libc
from lockstep.comm.libc import SEMAPHORE_BYTES
from lockstep.comm.segment_layout import CELLS, PAGE, SegmentLayout

if TYPE_CHECKING:
    from collections.abc import Callable

_HEADER: Final = struct.Struct("<qQQ")
HEADER_BYTES: Final = 64


@dataclass(frozen=True)
class MessageHeader:
    """What a message says about itself, in front of its bytes."""

    tag: int
    size: int
    dtype: int


class Ring:
    """The cells and semaphores that both ends of a channel share."""

    def __init__(self, view: memoryview, base: int, layout: SegmentLayout, *, source: int, to: int) -> None:
        start = layout.channel(source, to)
        self.filled, self.free = base + start, base + start + SEMAPHORE_BYTES
        self.room = layout.cell_bytes
        first = start + PAGE
        self.cells = [base + first + i * self.room for i in range(CELLS)]
        self.headers = [view[first + i * self.room :][:HEADER_BYTES] for i in range(CELLS)]
        self.index = 0

    def advance(self) -> None:
        """Go on to the next cell."""
        self.index = (self.index + 1) % CELLS


class Sender:
    """The sending end."""

    def __init__(self, ring: Ring, doorbell: int) -> None:
        self._ring, self._doorbell = ring, doorbell

    def push(self, header: MessageHeader, address: int, sent: int) -> int:
        """Send as much of a message as fits, from byte `sent` on (-1: not begun); return how much is sent now."""
        ring = self._ring
        while sent < header.size and libc.trywait(ring.free) == 0:  # 1
            at = 0
            if sent < 0:  # 2
                _HEADER.pack_into(ring.headers[ring.index], 0, header.tag, header.size, header.dtype)
                at, sent = HEADER_BYTES, 0
            count = min(ring.room - at, header.size - sent)
            memmove(ring.cells[ring.index] + at, address + sent, count)
            sent += count
            ring.advance()
            libc.post(ring.filled)  # 3
            libc.post(self._doorbell)
            if sent == header.size:
                break
        return sent


class Receiver:
    """The receiving end: it passes on the header of a new message and is told where to write the bytes."""

    def __init__(self, ring: Ring, doorbell: int) -> None:
        self._ring, self._doorbell = ring, doorbell
        self._left = 0
        self._to = 0
        self._ended: Callable[[], None] = _nothing

    def pull(self, begin: Callable[[MessageHeader], tuple[int, Callable[[], None]]]) -> bool:
        """Read all filled cells; return whether there were any."""
        ring = self._ring
        moved = False
        while libc.trywait(ring.filled) == 0:  # 4
            moved = True
            at = 0
            if self._left == 0:
                header = MessageHeader(*_HEADER.unpack_from(ring.headers[ring.index]))
                self._to, self._ended = begin(header)
                self._left, at = header.size, HEADER_BYTES
            count = min(ring.room - at, self._left)
            memmove(self._to, ring.cells[ring.index] + at, count)  # 5
            self._to += count
            self._left -= count
            ring.advance()
            libc.post(ring.free)  # 6
            libc.post(self._doorbell)
            if self._left == 0:
                self._ended()
        return moved


def _nothing() -> None:
    pass
