"""send and recv, with tags and any source, independent of the collectives.

A message that comes before its recv is put aside in private memory, so a recv of another tag behind it is not held up.
Operations make progress in the thread that waits for one, or else in a background thread; `drive` is held by
whoever does. The driver sleeps on this rank's bell, which peers ring after every cell they fill or free.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections import deque
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

from lockstep.comm import libc, tensors
from lockstep.comm.channel import Head, Receiver, Ring, Sender
from lockstep.comm.sync import LOOK_AROUND, YIELDS, Deadline
from lockstep.comm.wire import DTYPES
from lockstep.comm.work import Work
from lockstep.errors import Mismatch, PeerLost

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable

    from torch import Tensor

    from lockstep.comm.liveness import Liveness
    from lockstep.comm.segment_layout import Layout

ANY: Final = -1
GRACE: Final = 0.0005
"""Seconds that the background thread leaves an operation to its caller."""


@dataclass(eq=False)
class _Send:
    to: int
    head: Head
    row: Tensor
    work: Work
    deadline: Deadline
    sent: int = -1


@dataclass(eq=False)
class _Recv:
    source: int
    tag: int
    tensor: Tensor
    row: Tensor
    work: Work
    deadline: Deadline
    matched: bool = False
    """A message has begun to come in."""

    def wants(self, source: int, tag: int) -> bool:
        return not self.matched and self.tag == tag and self.source in (ANY, source)


@dataclass(eq=False)
class _Early:
    """A message that came before its recv."""

    source: int
    head: Head
    data: ctypes.Array[ctypes.c_char]
    whole: bool = False
    claimed: _Recv | None = None


class Messages:
    """All of this rank's sends and receives in a group."""

    def __init__(
        self, memory: mmap.mmap, layout: Layout, rank: int, *, liveness: Liveness, broken: Callable[[str], None]
    ) -> None:
        view = memoryview(memory)
        base = libc.address_of(view)
        self._rank, self._size, self._liveness, self._broken = rank, layout.size, liveness, broken
        self._bell = base + layout.bell(rank)
        bells = [base + layout.bell(r) for r in range(layout.size)]
        self._out = [Sender(Ring(view, base, layout, source=rank, to=r), bells[r]) for r in range(layout.size)]
        self._in = [Receiver(Ring(view, base, layout, source=r, to=rank), bells[r]) for r in range(layout.size)]
        self._sends: list[deque[_Send]] = [deque() for _ in range(layout.size)]
        self._recvs: list[_Recv] = []
        self._early: list[_Early] = []
        self._finished: deque[tuple[Work, BaseException | None]] = deque()
        self._state = threading.Lock()
        self._drive = threading.Lock()
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    # -- what the group calls

    def send(self, tensor: Tensor, to: int, tag: int, deadline: Deadline) -> Work:
        """Begin to send a tensor."""
        row = tensors.flat(tensor)
        head = Head(tag, row.nbytes, DTYPES.index(row.dtype))
        work = Work([tensor])
        with self._state:
            self._sends[to].append(_Send(to, head, row, work, deadline))
        return self._begin(work)

    def recv(self, tensor: Tensor, source: int, tag: int, deadline: Deadline) -> Work:
        """Begin to receive a tensor, from one rank or from ANY."""
        work = Work([tensor])
        recv = _Recv(source, tag, tensor, tensors.flat(tensor), work, deadline)
        with self._state:
            self._recvs.append(recv)
            early = next((e for e in self._early if e.claimed is None and recv.wants(e.source, e.head.tag)), None)
            if early is not None:
                recv.matched, recv.source, early.claimed = True, early.source, recv
                if early.whole:
                    self._deliver(early)
        return self._begin(work)

    def close(self) -> None:
        """Stop the background thread; what is under way fails."""
        self._closed = True
        if self._thread is not None:
            self._wake.put(None)
            libc.post(self._bell)
            self._thread.join()
            self._thread = None

    # -- progress

    def _begin(self, work: Work) -> Work:
        if self._drive.acquire(blocking=False):
            try:
                with self._state:
                    self._progress()
            finally:
                self._drive.release()
        self._tell()
        if not work.is_completed():
            work.help = self._help
            if self._thread is None:
                self._thread = threading.Thread(target=self._background, name="lockstep-mail", daemon=True)
                self._thread.start()
            self._wake.put(None)
            libc.post(self._bell)  # the driver may be asleep and not know of this one
        return work

    def _help(self, work: Work) -> None:
        if self._drive.acquire(blocking=False):
            try:
                self._run(work.is_completed, eager=True)
            finally:
                self._drive.release()
                self._wake.put(None)

    def _background(self) -> None:
        while not self._closed:
            self._wake.get()
            # Most callers wait at once, and then drive themselves, which needs no change of threads.
            time.sleep(GRACE)
            if not self._idle():
                with self._drive:
                    self._run(self._idle, eager=False)

    def _idle(self) -> bool:
        return self._closed or not (self._recvs or any(self._sends))

    def _run(self, over: Callable[[], bool], *, eager: bool) -> None:
        """Drive until `over`."""
        looks = YIELDS if eager else 0
        while True:
            while libc.trywait(self._bell) == 0:
                pass  # before looking, so that a ring during the look is not lost
            with self._state:
                moved = self._progress()
            self._tell()
            if over():
                return
            if moved:
                looks = YIELDS if eager else 0
            elif looks:
                looks -= 1
                libc.give_way()
            elif not libc.sleep_for(self._bell, LOOK_AROUND):
                with self._state:
                    self._look_around()
                self._tell()

    def _tell(self) -> None:
        """Mark operations as done, without the lock: what hangs on their futures may issue others."""
        while self._finished:
            with contextlib.suppress(IndexError):  # another thread took the last one
                work, error = self._finished.popleft()
                work.finish(error)

    def _progress(self) -> bool:
        moved = False
        for to, queue in enumerate(self._sends):
            while queue:
                item = queue[0]
                before = item.sent
                item.sent = self._out[to].push(item.head, item.row.data_ptr(), before)
                moved |= item.sent != before
                if item.sent < item.head.size:
                    break
                queue.popleft()
                self._finished.append((item.work, None))
        for source, receiver in enumerate(self._in):
            moved |= receiver.pull(lambda head, source=source: self._incoming(source, head))  # type: ignore[misc]
        return moved

    def _incoming(self, source: int, head: Head) -> tuple[int, Callable[[], None]]:
        """Find the recv that wants a message, or put it aside."""
        recv = next((r for r in self._recvs if r.wants(source, head.tag)), None)
        if recv is not None:
            recv.matched, recv.source = True, source
            if recv.row.nbytes == head.size and recv.row.dtype == DTYPES[head.dtype]:
                return recv.row.data_ptr(), lambda: self._complete(recv)
        early = _Early(source, head, ctypes.create_string_buffer(head.size), claimed=recv)
        self._early.append(early)

        def whole() -> None:
            early.whole = True
            if early.claimed is not None:
                self._deliver(early)

        return ctypes.addressof(early.data), whole

    def _deliver(self, early: _Early) -> None:
        """Hand a message that was put aside to its recv."""
        self._early.remove(early)
        recv = early.claimed
        if recv is None or recv not in self._recvs:
            return  # given up meanwhile
        sent = DTYPES[early.head.dtype]
        if recv.row.nbytes != early.head.size or recv.row.dtype != sent:
            self._recvs.remove(recv)
            me, sender = self._liveness.label(self._rank), self._liveness.label(early.source)
            wanted = f"{recv.row.numel()} x {recv.row.dtype}"
            came = f"{early.head.size // sent.itemsize} x {sent}"
            text = f"{me}: recv of {wanted} (tag {recv.tag}) met a message of {came} from {sender}"
            self._finished.append((recv.work, Mismatch(text)))
            return
        ctypes.memmove(recv.row.data_ptr(), early.data, early.head.size)
        self._complete(recv)

    def _complete(self, recv: _Recv) -> None:
        if recv not in self._recvs:
            return  # given up meanwhile
        self._recvs.remove(recv)
        tensors.put_back(recv.tensor, recv.row)
        recv.work.came_from(recv.source)
        self._finished.append((recv.work, None))

    # -- faults

    def _look_around(self) -> None:
        for recv in list(self._recvs):
            source = recv.source
            others = list(range(self._size)) if source == ANY else [source]
            whom = "any rank" if source == ANY else self._liveness.label(source)
            missing = "the message stopped half-way" if recv.matched else "no message came"
            error = self._fault(others, recv.deadline, f"recv from {whom} (tag {recv.tag})", missing)
            if error is not None:
                self._recvs.remove(recv)
                self._finished.append((recv.work, error))
        for queue in self._sends:
            if queue:
                item = queue[0]
                what = f"send to {self._liveness.label(item.to)} (tag {item.head.tag})"
                error = self._fault([item.to], item.deadline, what, "it was not received")
                if error is not None:
                    self._broken(str(error))  # part of the message may be in the channel, so nothing can follow it
                    while queue:
                        self._finished.append((queue.popleft().work, error))

    def _fault(self, ranks: list[int], deadline: Deadline, what: str, missing: str) -> PeerLost | None:
        me = self._liveness.label(self._rank)
        reason = self._liveness.why_lost([r for r in ranks if r != self._rank])
        if reason is not None:
            return PeerLost(f"{me}: {what}: {reason}")
        if deadline.over():
            return PeerLost(f"{me}: {what}: timed out after {deadline.seconds:g} s, {missing}")
        return None
