"""Rounds: every rank writes to its outbox, waits for all ranks, and reads the outboxes of the others.

    rank a:  write outbox[p]  --post-->  arrived[a][b]            1 write the data of this round
    rank b:  write outbox[p]  --post-->  arrived[b][a]            2 post one semaphore for every other rank
             wait for W-1 semaphores                              3 wait for one semaphore of every other rank
             read outbox[p] of all                                4 read; the next round uses the other parity p

[Note: two outboxes are enough]
A rank writes parity p again two rounds later, after it waited for the semaphores of the round in between. A peer posted
those only after it had read parity p. So nothing is overwritten that a rank still reads, with one wait per round.

[Note: waiting]
First spin a few times; then spin and yield the core, some dozens of times; then sleep in the kernel. Yielding early
matters: the peer may need this very core, even if there are enough cores. Yielding for long is bad on a busy machine:
a process that sleeps runs soon after it is woken, one that yielded comes last. A sleeper wakes ten times a second to
check for peers that died or wrote a notice, and for the deadline. That costs no measurable time, and it limits how late
a death is noticed. A background thread sleeps sooner: the training loop needs the core and the interpreter lock more.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from lockstep.comm import libc
from lockstep.errors import PeerLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstep.comm.liveness import Liveness
    from lockstep.comm.segment_layout import SegmentLayout

CHECK_INTERVAL: Final = 0.1
"""Seconds of sleep before a check of the other ranks and of the deadline."""
SPINS: Final = 5
YIELDS: Final = 60
BACKGROUND_YIELDS: Final = 30


class Deadline:
    """A point in time at which waiting ends."""

    __slots__ = ("at", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.at = time.monotonic() + seconds

    def over(self) -> bool:
        """Return whether the time is over."""
        return time.monotonic() >= self.at


def _is_posted(semaphore: int) -> bool:
    """Return whether a wait for this semaphore, which only this thread waits for, would return at once."""
    if libc.trywait(semaphore):
        return False
    libc.post(semaphore)
    return True


class Rounds:
    """This rank's side of the rounds of one group; used by one thread at a time."""

    def __init__(self, base: int, layout: SegmentLayout, rank: int, *, liveness: Liveness) -> None:
        others = [r for r in range(layout.size) if r != rank]
        # Start with the next rank, so that not all ranks begin with rank 0.
        others = [r for r in others if r > rank] + [r for r in others if r < rank]
        self._posts = tuple(base + layout.arrived(rank, r) for r in others)
        self._waits = tuple((base + layout.arrived(r, rank), r) for r in others)
        self._liveness = liveness
        self.parity = 0
        self.background = False
        """Set while a background thread runs the rounds."""

    def arrive_and_wait(self, deadline: Callable[[], Deadline], where: Callable[[], str]) -> None:
        """Do steps 2 and 3; `where` names the collective if something goes wrong."""
        post, trywait = libc.post, libc.trywait
        for semaphore in self._posts:
            post(semaphore)
        for semaphore, rank in self._waits:
            if trywait(semaphore):
                self._wait(semaphore, rank, deadline(), where)

    def flip_parity(self) -> None:
        """Step 4 is over: the next round uses the other parity."""
        self.parity ^= 1

    def _wait(self, semaphore: int, rank: int, deadline: Deadline, where: Callable[[], str]) -> None:
        trywait = libc.trywait
        for _ in range(0 if self.background else SPINS):
            if not trywait(semaphore):
                return
        sched_yield = libc.sched_yield
        for _ in range(BACKGROUND_YIELDS if self.background else YIELDS):
            sched_yield()
            if not trywait(semaphore):
                return
        while not libc.timed_wait(semaphore, CHECK_INTERVAL):
            # Not only the awaited rank: it may itself wait, elsewhere, for one that died.
            reason = self._liveness.why_lost(self._missing(rank))
            if reason is None and not deadline.over():
                continue
            missing = self._missing(rank)  # once more: a rank may have arrived just before it ended
            if rank not in missing:
                continue
            reason = self._liveness.why_lost(missing)
            if reason is not None:
                raise PeerLost(f"{where()}: {reason}")
            if deadline.over():
                names = ", ".join(self._liveness.name(r) for r in sorted(missing))
                # "Timed out" comes first, as in gloo's messages: scripts look for it.
                raise PeerLost(f"Timed out after {deadline.seconds:g} s in {where()}, still missing: {names}")

    def _missing(self, awaited: int) -> list[int]:
        """Return the ranks that have not arrived in this round, beginning with the awaited one."""
        place = [rank for _, rank in self._waits].index(awaited)
        return [rank for semaphore, rank in self._waits[place:] if not _is_posted(semaphore)]
