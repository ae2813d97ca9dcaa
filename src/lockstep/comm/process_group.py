"""A running process group: operations in order, messages between ranks, and one failure for all if a rank is lost."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from os import getpid
from typing import TYPE_CHECKING, Any, Final

from lockstep.comm import bootstrap, libc, tensors
from lockstep.comm.large import LargeReductions
from lockstep.comm.libc import SEMAPHORE_BYTES
from lockstep.comm.liveness import Liveness
from lockstep.comm.outboxes import Outboxes
from lockstep.comm.point_to_point import ANY, Messages
from lockstep.comm.segment_layout import CELLS, SegmentLayout
from lockstep.comm.small import SmallCalls
from lockstep.comm.sync import Deadline
from lockstep.comm.work import DoneWork, OperationQueue, Work
from lockstep.errors import BadInput, Mismatch, PeerLost
from lockstep.torch_compat.process_group import PythonProcessGroup

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable

    from torch import Tensor

_ZERO: Final = timedelta(0)


def _init_semaphores(layout: SegmentLayout, memory: mmap.mmap) -> None:
    """Initialise every semaphore of a new segment."""
    base = libc.address_of(memoryview(memory))
    ranks = range(layout.size)
    for source in ranks:
        libc.init(base + layout.notice(source))
        libc.init(base + layout.doorbell(source))
        for to in ranks:
            libc.init(base + layout.arrived(source, to))
            channel = base + layout.channel(source, to)
            libc.init(channel)
            libc.init(channel + SEMAPHORE_BYTES, CELLS)


class SegmentGroup(PythonProcessGroup):
    """The ranks of a group with their segment."""

    def __init__(self, member: bootstrap.Member, world_ranks: list[int]) -> None:
        super().__init__(member.rank, member.size, "shm", member.timeout)
        self._seconds = member.timeout.total_seconds()
        self._broken: str | None = None
        self._left = False
        self._pid = getpid()
        prefix = bootstrap.new_prefix(member, "shm")
        ranks = bootstrap.exchange_identities(member, prefix)
        layout = SegmentLayout(member.size)
        self._memory = bootstrap.share_segment(
            member, prefix, ranks, layout.total, lambda memory: _init_semaphores(layout, memory)
        )
        view = memoryview(self._memory)
        names = [f"rank {r}" for r in (world_ranks or range(member.size))]
        self._name_here = names[member.rank]
        self._liveness = Liveness(view, libc.address_of(view), layout, ranks, names=names)
        self._outboxes = Outboxes(self._memory, layout, member.rank, liveness=self._liveness)
        self._small = SmallCalls(self._outboxes)
        self._large = LargeReductions(self._outboxes)
        self._messages = Messages(self._memory, layout, member.rank, liveness=self._liveness, broken=self._break)
        self._operations = OperationQueue("lockstep-shm", self._set_background, self._where)
        self._member, self._ranks = member, ranks
        self._last = DoneWork([])

    def _set_background(self, background: bool) -> None:
        self._outboxes.rounds.background = background

    def _where(self) -> str:
        return "an operation of a group that this rank has left" if self._left else self._outboxes.where()

    # -- running an operation

    def _issue(self, opts: Any, operation: Callable[[Deadline], None], result: list[Tensor]) -> Work:
        """Run an operation now or in the background, as the options say."""
        self._check_process()
        deadline = self._deadline(opts)
        if opts.asyncOp:
            return self._operations.submit(lambda: self._guarded(operation, deadline), result)
        return self._operations.call(lambda: self._guarded(operation, deadline), result)

    def _deadline(self, opts: Any) -> Deadline:
        limit = opts.timeout
        return Deadline(self._seconds if limit < _ZERO else limit.total_seconds())

    def _guarded(self, operation: Callable[[Deadline], None], deadline: Deadline) -> None:
        """Run an operation; if it fails half-way, no rank can continue, so tell the others why."""
        self._check_usable()
        try:
            operation(deadline)
        except BaseException as error:
            self._after(error)
            raise

    def _check_process(self) -> None:
        """Refuse a forked child of the group's process, and a group that this rank has left."""
        if getpid() != self._pid:
            raise BadInput(
                f"process {getpid()} was forked from process {self._pid}, which is {self._name_here} of this group: a "
                "child cannot take part in its place; make a group of its own, or start the process by spawn"
            )
        if self._left:
            raise PeerLost("this group was destroyed (destroy_process_group) on this rank: make a new one")

    def _check_usable(self) -> None:
        self._check_process()
        if self._broken is not None:
            raise PeerLost(f"this group can no longer be used, make a new one: {self._broken}")

    def _after(self, error: BaseException) -> None:
        """Keep the group if the error left all ranks in step, else break it."""
        if isinstance(error, Mismatch | BadInput):
            return  # raised by all ranks, or before anything was exchanged
        known = isinstance(error, PeerLost)
        self._break(str(error) if known else f"{self._outboxes.where()}: {type(error).__name__}: {error}")

    def _break(self, reason: str) -> None:
        self._broken = reason
        self._liveness.post_notice(self._rank, reason)

    def share_memory(self, size: int, what: str) -> mmap.mmap:
        """Map `size` bytes of new memory that all ranks of the group share; a collective call."""
        self._check_process()
        member = replace(self._member, what=what)
        return bootstrap.share_segment(
            member, bootstrap.new_prefix(member, "share"), self._ranks, size, lambda memory: None
        )

    # -- messages

    def send(self, tensor_list: list[Tensor], to: int, tag: int = 0) -> Work:
        """Begin to send a tensor to a rank."""
        tensors.check_cpu(tensor_list)
        self._check_usable()
        return self._messages.send(tensor_list[0], to, tag, Deadline(self._seconds))

    def recv(self, tensor_list: list[Tensor], source: int, tag: int = 0) -> Work:
        """Begin to receive a tensor from a rank."""
        tensors.check_cpu(tensor_list)
        self._check_usable()
        return self._messages.recv(tensor_list[0], source, tag, Deadline(self._seconds))

    def recv_anysource(self, tensor_list: list[Tensor], tag: int = 0) -> Work:
        """Begin to receive a tensor from any rank."""
        return self.recv(tensor_list, ANY, tag)

    # -- the group itself

    def shutdown(self) -> None:
        """Leave the group; ranks that still wait for this one get an error that says so."""
        if self._left or getpid() != self._pid:  # a forked child has nothing to leave
            return
        self._left = True
        if self._broken is None:
            self._break(f"{self._liveness.name(self._rank)} has left the group (destroy_process_group)")
        # Operations under way may end if the others take part; they must not block this rank for ever.
        self._liveness.stopped = "this rank has left the group"
        self._operations.close()
        self._messages.close()
        self._liveness.close()
        # torch keeps groups in cycles; the memory must not wait for the garbage collector.
        del self._memory, self._outboxes, self._small, self._large, self._messages, self._liveness

    def abort(self) -> None:
        """Leave the group without waiting for operations under way."""
        if not self._left and getpid() == self._pid:
            self._liveness.stopped = "the group was aborted"
            self._break(f"{self._liveness.name(self._rank)} has aborted the group")

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of future operations."""
        self._seconds = timeout.total_seconds()
