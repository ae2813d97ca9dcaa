"""Rounds: every rank shows something, waits for all, and reads what the others show.

    rank a:  write outbox[p]  --post-->  arrived[a][b]            1 write what this round shows
    rank b:  write outbox[p]  --post-->  arrived[b][a]            2 post one flag for every other rank
             wait for W-1 flags                                   3 take one flag of every other rank
             read outbox[p] of all                                4 read; the next round uses the other parity p

[Note: two outboxes are enough]
A rank writes parity p again two rounds later, after it took the flags of the round between. A peer posted those only
when it was done reading parity p. So nothing is overwritten that anyone still reads, with one wait a round.

[Note: waiting]
First look a few times; then look and give the core away, some dozens of times; then sleep in the kernel. Giving way
early matters: the peer that is awaited may need this very core, also when there are enough cores on paper. Giving way
for long is bad on a busy machine: a process that sleeps is run soon after it is woken, one that gave way comes last. A
sleeper looks around ten times a second: for a peer that died or left a notice, and at the clock. That costs no
measurable time, and it bounds how late a death is noticed. A background thread sleeps sooner: the training
loop needs the core and the interpreter lock more.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from lockstep.comm import libc
from lockstep.errors import PeerLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstep.comm.liveness import Liveness
    from lockstep.comm.segment_layout import Layout

LOOK_AROUND: Final = 0.1
"""Seconds of sleep before a look at the other ranks and the clock."""
SPINS: Final = 5
YIELDS: Final = 60
PATIENT_YIELDS: Final = 30


class Deadline:
    """A point in time after which waiting is given up."""

    __slots__ = ("at", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.at = time.monotonic() + seconds

    def over(self) -> bool:
        """Tell whether the time is up."""
        return time.monotonic() >= self.at


class Rounds:
    """This rank's side of the rounds of one group; used by one thread at a time."""

    def __init__(self, base: int, layout: Layout, rank: int, *, liveness: Liveness) -> None:
        others = [r for r in range(layout.size) if r != rank]
        # Start with the next rank, so that not all ranks knock at rank 0 first.
        others = [r for r in others if r > rank] + [r for r in others if r < rank]
        self._posts = tuple(base + layout.arrived(rank, r) for r in others)
        self._waits = tuple((base + layout.arrived(r, rank), r) for r in others)
        self._liveness = liveness
        self.parity = 0
        self.patient = False
        """Set while a background thread runs the rounds."""

    def meet(self, deadline: Callable[[], Deadline], where: Callable[[], str]) -> None:
        """Do steps 2 and 3; `where` names the collective if something goes wrong."""
        post, trywait = libc.post, libc.trywait
        for flag in self._posts:
            post(flag)
        for flag, rank in self._waits:
            if trywait(flag):
                self._wait(flag, rank, deadline(), where)

    def turn(self) -> None:
        """Step 4 is over: the next round uses the other parity."""
        self.parity ^= 1

    def _wait(self, flag: int, rank: int, deadline: Deadline, where: Callable[[], str]) -> None:
        trywait = libc.trywait
        for _ in range(0 if self.patient else SPINS):
            if not trywait(flag):
                return
        give_way = libc.give_way
        for _ in range(PATIENT_YIELDS if self.patient else YIELDS):
            give_way()
            if not trywait(flag):
                return
        while not libc.sleep_for(flag, LOOK_AROUND):
            reason = self._liveness.why_lost((rank,))
            if reason is not None and libc.trywait(flag):
                raise PeerLost(f"{where()}: {reason}")
            if reason is not None:
                return
            if deadline.over():
                self._give_up(flag, rank, deadline, where)
                return

    def _give_up(self, flag: int, rank: int, deadline: Deadline, where: Callable[[], str]) -> None:
        """Name everyone who has not come, unless the awaited one came in the last moment."""
        if not libc.trywait(flag):
            return
        later = self._waits[[r for _, r in self._waits].index(rank) + 1 :]
        missing = [rank] + [r for f, r in later if libc.trywait(f)]
        names = ", ".join(self._liveness.name(r) for r in sorted(missing))
        raise PeerLost(f"{where()}: timed out after {deadline.seconds:g} s, still missing: {names}")
