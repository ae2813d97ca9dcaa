"""send and recv, with tags and any source, independent of the collectives.

An unexpected message (one that comes before its recv) is put aside in private memory, so that messages with other tags
behind it are not blocked. Operations make progress in the thread that waits for one, or else in a background thread:
the driver, which holds the lock `_drive`. It sleeps on this rank's doorbell, which peers ring after every cell that
they fill or free.
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
from lockstep.comm.channel import MessageHeader, Receiver, Ring, Sender
from lockstep.comm.sync import CHECK_INTERVAL, YIELDS, Deadline
from lockstep.comm.wire import DTYPES
from lockstep.comm.work import Work
from lockstep.errors import Mismatch, PeerLost

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable

    from torch import Tensor

    from lockstep.comm.liveness import Liveness
    from lockstep.comm.segment_layout import SegmentLayout

ANY: Final = -1
GRACE: Final = 0.0005
"""Seconds for which the background thread leaves an operation to its caller."""


@dataclass(eq=False)
class _Send:
    to: int
    header: MessageHeader
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
    """Whether a message has begun to come in."""

    def wants(self, source: int, tag: int) -> bool:
        return not self.matched and self.tag == tag and self.source in (ANY, source)


@dataclass(eq=False)
class _UnexpectedMessage:
    """A message that came before its recv."""

    source: int
    header: MessageHeader
    data: ctypes.Array[ctypes.c_char]
    whole: bool = False
    claimed: _Recv | None = None


class Messages:
    """All of this rank's sends and receives in a group."""

    def __init__(
        self, memory: mmap.mmap, layout: SegmentLayout, rank: int, *, liveness: Liveness, broken: Callable[[str], None]
    ) -> None:
        view = memoryview(memory)
        base = libc.address_of(view)
        self._rank, self._size, self._liveness, self._broken = rank, layout.size, liveness, broken
        self._doorbell = base + layout.doorbell(rank)
        doorbells = [base + layout.doorbell(r) for r in range(layout.size)]
        self._out = [Sender(Ring(view, base, layout, source=rank, to=r), doorbells[r]) for r in range(layout.size)]
        self._in = [Receiver(Ring(view, base, layout, source=r, to=rank), doorbells[r]) for r in range(layout.size)]
        self._sends: list[deque[_Send]] = [deque() for _ in range(layout.size)]
        self._recvs: list[_Recv] = []
        self._unexpected: list[_UnexpectedMessage] = []
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
        header = MessageHeader(tag, row.nbytes, DTYPES.index(row.dtype))
        work = Work([tensor])
        with self._state:
            self._sends[to].append(_Send(to, header, row, work, deadline))
        return self._begin(work)

    def recv(self, tensor: Tensor, source: int, tag: int, deadline: Deadline) -> Work:
        """Begin to receive a tensor, from one rank or from ANY."""
        work = Work([tensor])
        recv = _Recv(source, tag, tensor, tensors.flat(tensor), work, deadline)
        with self._state:
            self._recvs.append(recv)
            message = next(
                (e for e in self._unexpected if e.claimed is None and recv.wants(e.source, e.header.tag)), None
            )
            if message is not None:
                recv.matched, recv.source, message.claimed = True, message.source, recv
                if message.whole:
                    self._deliver(message)
        return self._begin(work)

    def close(self) -> None:
        """Stop the background thread; operations under way fail."""
        self._closed = True
        if self._thread is not None:
            self._wake.put(None)
            libc.post(self._doorbell)
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
        self._finish_completed()
        if not work.is_completed():
            work.help = self._help
            if self._thread is None:
                self._thread = threading.Thread(target=self._background, name="lockstep-p2p", daemon=True)
                self._thread.start()
            self._wake.put(None)
            libc.post(self._doorbell)  # the driver may be asleep and not know of this one
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
            # Most callers wait at once and then drive the operation themselves, which needs no change of threads.
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
            while libc.trywait(self._doorbell) == 0:
                pass  # before looking, so that a ring during the look is not lost
            with self._state:
                moved = self._progress()
            self._finish_completed()
            if over():
                return
            if moved:
                looks = YIELDS if eager else 0
            elif looks:
                looks -= 1
                libc.sched_yield()
            elif not libc.timed_wait(self._doorbell, CHECK_INTERVAL):
                with self._state:
                    self._check_peers()
                self._finish_completed()

    def _finish_completed(self) -> None:
        """Mark operations as done, without the lock: callbacks of their futures may issue others."""
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
                item.sent = self._out[to].push(item.header, item.row.data_ptr(), before)
                moved |= item.sent != before
                if item.sent < item.header.size:
                    break
                queue.popleft()
                self._finished.append((item.work, None))
        for source, receiver in enumerate(self._in):
            moved |= receiver.pull(lambda header, source=source: self._incoming(source, header))  # type: ignore[misc]
        return moved

    def _incoming(self, source: int, header: MessageHeader) -> tuple[int, Callable[[], None]]:
        """Find the recv that matches a message, or put the message aside."""
        recv = next((r for r in self._recvs if r.wants(source, header.tag)), None)
        if recv is not None:
            recv.matched, recv.source = True, source
            if recv.row.nbytes == header.size and recv.row.dtype == DTYPES[header.dtype]:
                return recv.row.data_ptr(), lambda: self._complete(recv)
        message = _UnexpectedMessage(source, header, ctypes.create_string_buffer(header.size), claimed=recv)
        self._unexpected.append(message)

        def whole() -> None:
            message.whole = True
            if message.claimed is not None:
                self._deliver(message)

        return ctypes.addressof(message.data), whole

    def _deliver(self, message: _UnexpectedMessage) -> None:
        """Hand a message that was put aside to its recv."""
        self._unexpected.remove(message)
        recv = message.claimed
        if recv is None or recv not in self._recvs:
            return  # abandoned meanwhile
        sent = DTYPES[message.header.dtype]
        if recv.row.nbytes != message.header.size or recv.row.dtype != sent:
            self._recvs.remove(recv)
            me, sender = self._liveness.label(self._rank), self._liveness.label(message.source)
            wanted = f"{recv.row.numel()} x {recv.row.dtype}"
            came = f"{message.header.size // sent.itemsize} x {sent}"
            text = (
                f"{me}: recv of {wanted} (tag {recv.tag}) does not match the message of {came} from {sender}: "
                f"send and recv need the same number of elements and dtype"
            )
            self._finished.append((recv.work, Mismatch(text)))
            return
        ctypes.memmove(recv.row.data_ptr(), message.data, message.header.size)
        self._complete(recv)

    def _complete(self, recv: _Recv) -> None:
        if recv not in self._recvs:
            return  # abandoned meanwhile
        self._recvs.remove(recv)
        tensors.put_back(recv.tensor, recv.row)
        recv.work.set_source(recv.source)
        self._finished.append((recv.work, None))

    # -- faults

    def _check_peers(self) -> None:
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
                what = f"send to {self._liveness.label(item.to)} (tag {item.header.tag})"
                error = self._fault([item.to], item.deadline, what, "it was not received")
                if error is not None:
                    # Part of the message may be in the channel, so nothing can follow it.
                    self._broken(str(error))
                    while queue:
                        self._finished.append((queue.popleft().work, error))

    def _fault(self, ranks: list[int], deadline: Deadline, what: str, missing: str) -> PeerLost | None:
        me = self._liveness.label(self._rank)
        reason = self._liveness.why_lost([r for r in ranks if r != self._rank])
        if reason is not None:
            return PeerLost(f"{me}: {what}: {reason}")
        if deadline.over():
            return PeerLost(f"Timed out after {deadline.seconds:g} s: {me}: {what}: {missing}")
        return None
