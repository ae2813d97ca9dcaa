"""Which ranks of a group are alive: ended processes, seen by the kernel, and notices that ranks write."""

from __future__ import annotations

import contextlib
import os
import select
from typing import TYPE_CHECKING

from lockstep.comm import libc
from lockstep.comm.identity import Identity, start_time
from lockstep.comm.libc import SEMAPHORE_BYTES
from lockstep.comm.segment_layout import NOTICE_BYTES, SegmentLayout

if TYPE_CHECKING:
    from collections.abc import Iterable


class Liveness:
    """Watches the other ranks' processes, and reads and writes notices.

    A notice says why a rank takes no further part in the group. It is never taken back.
    """

    def __init__(
        self, memory: memoryview, base: int, layout: SegmentLayout, ranks: list[Identity], *, names: list[str]
    ) -> None:
        self._memory, self._base, self._layout = memory, base, layout
        self._ranks, self._names = ranks, names
        self._watched: dict[int, int] = {}  # pidfd -> rank
        self._poll = select.poll()
        self._gone: set[int] = set()
        self._unwatched: list[Identity] = []
        self.stopped: str | None = None
        """Why this rank itself must stop waiting."""
        for peer in ranks:
            if peer.pid != os.getpid():
                self._watch(peer)

    def _watch(self, peer: Identity) -> None:
        try:
            descriptor = os.pidfd_open(peer.pid)
        except ProcessLookupError:
            self._gone.add(peer.rank)
            return
        except (OSError, AttributeError):  # a kernel before 5.3, or a sandbox: look at /proc instead
            self._unwatched.append(peer)
            return
        if start_time(peer.pid) != peer.started:  # the process number has been reused
            self._gone.add(peer.rank)
        self._watched[descriptor] = peer.rank
        self._poll.register(descriptor, select.POLLIN)

    def name(self, rank: int) -> str:
        """Return a rank's full name: its world rank, process and host."""
        who = self._ranks[rank]
        return f"{self._names[rank]} (process {who.pid} on {who.host})"

    def label(self, rank: int) -> str:
        """Return a rank's short name."""
        return self._names[rank]

    def dead(self) -> set[int]:
        """Return the ranks whose process has ended."""
        if self._watched:
            for descriptor, _ in self._poll.poll(0):
                self._gone.add(self._watched[descriptor])
        for peer in self._unwatched:
            if start_time(peer.pid) != peer.started:
                self._gone.add(peer.rank)
        return self._gone

    def post_notice(self, rank: int, text: str) -> None:
        """Write a rank's notice and post its semaphore."""
        start = self._layout.notice(rank)
        room = NOTICE_BYTES - SEMAPHORE_BYTES
        data = text.encode()[:room].ljust(room, b"\0")
        self._memory[start + SEMAPHORE_BYTES : start + NOTICE_BYTES] = data
        libc.post(self._base + start)

    def notice(self, rank: int) -> str | None:
        """Return a rank's notice, if it has written one."""
        semaphore = self._base + self._layout.notice(rank)
        # See [Note: memory order]: wait on the semaphore and post it again, so that the text is complete.
        if libc.trywait(semaphore) != 0:
            return None
        libc.post(semaphore)
        start = self._layout.notice(rank)
        text = bytes(self._memory[start + SEMAPHORE_BYTES : start + NOTICE_BYTES])
        return text.rstrip(b"\0").decode(errors="replace")

    def why_lost(self, awaited: Iterable[int]) -> str | None:
        """Return why one of these ranks will never arrive, or None if all of them still can."""
        if self.stopped is not None:
            return self.stopped
        dead = self.dead()
        for rank in awaited:
            text = self.notice(rank)
            if text is not None:
                return text
            if rank in dead:
                return f"{self.name(rank)} has died"
        return None

    def close(self) -> None:
        """Stop watching."""
        for descriptor in self._watched:
            with contextlib.suppress(KeyError, OSError):
                self._poll.unregister(descriptor)
            os.close(descriptor)
        self._watched.clear()
