"""Where everything lies in a group's segment. Pure.

    +--------+-----------------+---------+-------+--------------+-----------+---------------------+
    | token  | arrived[s][d]   | notices | bells | lines        | outboxes  | channels[s][d]      |
    |        | one flag a pair | 1 a rank|       | 2 a rank     | 2 a rank  | flag, cells: send   |
    +--------+-----------------+---------+-------+--------------+-----------+---------------------+

Pages nobody touches are never given memory, so a wide segment costs what is used of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lockstep.comm.libc import SEMAPHORE_BYTES
from lockstep.comm.wire import LINE_BYTES

PAGE: Final = 4096
TOKEN_BYTES: Final = 64
NOTICE_BYTES: Final = 1024
"""A flag, then the text."""
ALIGN: Final = 64
"""What lies beside something else starts at a multiple of this: a cache line."""
CELLS: Final = 4
"""Cells of a channel: the sender fills one while the receiver empties another."""
SMALL_BYTES: Final = 64 * 1024
"""Up to here every rank reduces everything itself: one wait less, which costs more than the extra additions."""


def _pages(size: int) -> int:
    return -(-size // PAGE) * PAGE


@dataclass(frozen=True)
class Layout:
    """Offsets for `size` ranks."""

    size: int
    outbox_bytes: int = 1 << 20
    """What a rank shows the others in one round; larger messages go in several."""
    channel_bytes: int = 1 << 20
    """Upper limit of one sender-receiver channel's data."""

    @property
    def cell_bytes(self) -> int:
        """Return a cell's size: all channels together stay within 64 MiB as long as a cell has 4 KiB."""
        share = min(self.channel_bytes, (64 << 20) // (self.size * self.size)) // CELLS
        return max(PAGE, share // PAGE * PAGE)

    def piece(self, head: int = 0) -> int:
        """Return how many bytes of an outbox there are for each rank, after `head` bytes of something else."""
        return (self.outbox_bytes - head) // self.size // ALIGN * ALIGN

    @property
    def _notices(self) -> int:
        return TOKEN_BYTES + self.size * self.size * SEMAPHORE_BYTES

    @property
    def _bells(self) -> int:
        return self._notices + self.size * NOTICE_BYTES

    @property
    def _lines(self) -> int:
        return self._bells + self.size * SEMAPHORE_BYTES

    @property
    def _outboxes(self) -> int:
        return _pages(self._lines + 2 * self.size * LINE_BYTES)

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
        """Return the flag by which `source` tells `to` that its round is in the outbox."""
        return TOKEN_BYTES + (source * self.size + to) * SEMAPHORE_BYTES

    def notice(self, rank: int) -> int:
        """Return where `rank` says why it takes no further part: a flag, then the text."""
        return self._notices + rank * NOTICE_BYTES

    def bell(self, rank: int) -> int:
        """Return the flag that is raised when a channel of `rank` moved."""
        return self._bells + rank * SEMAPHORE_BYTES

    def line(self, rank: int, parity: int) -> int:
        """Return where `rank` says which collective it is in; the lines of a round follow each other."""
        return self._lines + (parity * self.size + rank) * LINE_BYTES

    def outbox(self, rank: int, parity: int) -> int:
        """Return where `rank` shows its data of a round."""
        return self._outboxes + (rank * 2 + parity) * self.outbox_bytes

    def channel(self, source: int, to: int) -> int:
        """Return a channel: flags `filled` and `free`, then on the next page the cells."""
        return self._channels + (source * self.size + to) * self._channel_stride
