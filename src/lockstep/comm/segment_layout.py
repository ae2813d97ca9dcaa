"""Where everything lies in a group's segment. Pure.

    +-------+---------------+------------+------------+------------+------------+-------------------+
    | token | arrived[s][d] | notices    | doorbells  | signatures | outboxes   | channels[s][d]    |
    |       | 1 semaphore   | 1 per rank | 1 per rank | 2 per rank | 2 per rank | 2 semaphores,     |
    |       | per pair      |            |            |            |            | cells of messages |
    +-------+---------------+------------+------------+------------+------------+-------------------+

Pages that are never used get no memory, so a large segment needs only what is used of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lockstep.comm.libc import SEMAPHORE_BYTES
from lockstep.comm.wire import SIGNATURE_BYTES

PAGE: Final = 4096
TOKEN_BYTES: Final = 64
NOTICE_BYTES: Final = 1024
"""A semaphore, then the text."""
ALIGN: Final = 64
"""Neighbouring data starts at multiples of this: a cache line."""
CELLS: Final = 4
"""Cells of a channel: the sender fills one while the receiver empties another."""
SMALL_BYTES: Final = 64 * 1024
"""Up to this size every rank reduces everything itself: the extra additions cost less than one more wait."""


def _pages(size: int) -> int:
    return -(-size // PAGE) * PAGE


@dataclass(frozen=True)
class SegmentLayout:
    """Offsets for `size` ranks."""

    size: int
    outbox_bytes: int = 1 << 20
    """What a rank can write in one round; larger tensors take several rounds."""
    channel_bytes: int = 1 << 20
    """Upper limit of one sender-receiver channel's data."""

    @property
    def cell_bytes(self) -> int:
        """Return a cell's size: all channels together stay within 64 MiB as long as a cell has 4 KiB."""
        share = min(self.channel_bytes, (64 << 20) // (self.size * self.size)) // CELLS
        return max(PAGE, share // PAGE * PAGE)

    def piece(self, head: int = 0) -> int:
        """Return how many bytes of an outbox there are for each rank, after `head` bytes of a header."""
        return (self.outbox_bytes - head) // self.size // ALIGN * ALIGN

    @property
    def _notices(self) -> int:
        return TOKEN_BYTES + self.size * self.size * SEMAPHORE_BYTES

    @property
    def _doorbells(self) -> int:
        return self._notices + self.size * NOTICE_BYTES

    @property
    def _signatures(self) -> int:
        return self._doorbells + self.size * SEMAPHORE_BYTES

    @property
    def _outboxes(self) -> int:
        return _pages(self._signatures + 2 * self.size * SIGNATURE_BYTES)

    @property
    def _channels(self) -> int:
        return self._outboxes + 2 * self.size * self.outbox_bytes

    @property
    def _channel_stride(self) -> int:
        return PAGE + CELLS * self.cell_bytes

    @property
    def total(self) -> int:
        """Return the size of the segment in bytes."""
        return self._channels + self.size * self.size * self._channel_stride

    def arrived(self, source: int, to: int) -> int:
        """Return the semaphore by which `source` signals `to` that its data of a round is in its outbox."""
        return TOKEN_BYTES + (source * self.size + to) * SEMAPHORE_BYTES

    def notice(self, rank: int) -> int:
        """Return where `rank` writes why it takes no further part: a semaphore, then the text."""
        return self._notices + rank * NOTICE_BYTES

    def doorbell(self, rank: int) -> int:
        """Return the semaphore that is posted when a channel of `rank` has made progress."""
        return self._doorbells + rank * SEMAPHORE_BYTES

    def signature(self, rank: int, parity: int) -> int:
        """Return where `rank` writes the signature of its collective; those of one parity are contiguous."""
        return self._signatures + (parity * self.size + rank) * SIGNATURE_BYTES

    def outbox(self, rank: int, parity: int) -> int:
        """Return where `rank` writes its data of a round."""
        return self._outboxes + (rank * 2 + parity) * self.outbox_bytes

    def channel(self, source: int, to: int) -> int:
        """Return a channel: semaphores `filled` and `free`, then on the next page the cells."""
        return self._channels + (source * self.size + to) * self._channel_stride
