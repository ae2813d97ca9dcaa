"""A group that is up: it runs operations in order, carries messages, and breaks as a whole when a rank is lost."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from lockstep.comm import libc, meet, tensors
from lockstep.comm.exchange import Exchange
from lockstep.comm.large import LargeReductions
from lockstep.comm.layout import CELLS, Layout
from lockstep.comm.libc import SEMAPHORE_BYTES
from lockstep.comm.mail import ANY, Mail
from lockstep.comm.named import NamedGroup
from lockstep.comm.peers import Peers
from lockstep.comm.small import SmallCalls
from lockstep.comm.sync import Deadline
from lockstep.comm.work import DoneWork, Turns, Work
from lockstep.errors import BadInput, Mismatch, PeerLost

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable

    from torch import Tensor

_ZERO: Final = timedelta(0)


def _make_flags(layout: Layout, memory: mmap.mmap) -> None:
    """Initialise every semaphore of a new segment."""
    base = libc.address_of(memoryview(memory))
    ranks = range(layout.size)
    for source in ranks:
        libc.init(base + layout.notice(source))
        libc.init(base + layout.bell(source))
        for to in ranks:
            libc.init(base + layout.arrived(source, to))
            channel = base + layout.channel(source, to)
            libc.init(channel)
            libc.init(channel + SEMAPHORE_BYTES, CELLS)


class RunningGroup(NamedGroup):
    """The ranks of a group with their segment."""

    def __init__(self, place: meet.Place, world_ranks: list[int]) -> None:
        super().__init__(place.rank, place.size)
        self._seconds = place.timeout.total_seconds()
        self._broken: str | None = None
        self._left = False
        prefix = meet.fresh(place, "shm")
        ranks = meet.identities(place, prefix)
        layout = Layout(place.size)
        self._memory = meet.share(place, prefix, ranks, layout.total, lambda memory: _make_flags(layout, memory))
        view = memoryview(self._memory)
        names = [f"rank {r}" for r in (world_ranks or range(place.size))]
        self._peers = Peers(view, libc.address_of(view), layout, ranks, names=names)
        self._exchange = Exchange(self._memory, layout, place.rank, peers=self._peers)
        self._small = SmallCalls(self._exchange)
        self._large = LargeReductions(self._exchange)
        self._mail = Mail(self._memory, layout, place.rank, peers=self._peers, broken=self._break)
        self._turns = Turns("lockstep-shm", self._set_patient, self._where)
        self._place, self._ranks = place, ranks
        self._last = DoneWork([])

    def _set_patient(self, patient: bool) -> None:
        self._exchange.rounds.patient = patient

    def _where(self) -> str:
        return "an operation of a group that was left" if self._left else self._exchange.where()

    # -- running an operation

    def _issue(self, opts: Any, operation: Callable[[Deadline], None], result: list[Tensor]) -> Work:
        """Run an operation now or in the background, as the options ask."""
        deadline = self._deadline(opts)
        if opts.asyncOp:
            return self._turns.submit(lambda: self._guarded(operation, deadline), result)
        return self._turns.call(lambda: self._guarded(operation, deadline), result)

    def _deadline(self, opts: Any) -> Deadline:
        limit = opts.timeout
        return Deadline(self._seconds if limit < _ZERO else limit.total_seconds())

    def _guarded(self, operation: Callable[[Deadline], None], deadline: Deadline) -> None:
        """Run an operation; if it fails half-way, nobody can go on, so tell the others why."""
        self._check_usable()
        try:
            operation(deadline)
        except BaseException as error:
            self._after(error)
            raise

    def _check_usable(self) -> None:
        if self._broken is not None:
            raise PeerLost(f"this group can no longer be used: {self._broken}")

    def _after(self, error: BaseException) -> None:
        """Go on after an error that left the ranks in step, else break the group."""
        if isinstance(error, Mismatch | BadInput):
            return  # found by all ranks alike, or before anything was exchanged
        known = isinstance(error, PeerLost)
        self._break(str(error) if known else f"{self._exchange.where()}: {type(error).__name__}: {error}")

    def _break(self, reason: str) -> None:
        self._broken = reason
        self._peers.leave(self._rank, reason)

    def share(self, size: int, what: str) -> mmap.mmap:
        """Map `size` bytes of new memory that all ranks of the group see; a collective call."""
        place = replace(self._place, what=what)
        return meet.share(place, meet.fresh(place, "share"), self._ranks, size, lambda memory: None)

    # -- messages

    def send(self, tensor_list: list[Tensor], to: int, tag: int = 0) -> Work:
        """Begin to send a tensor to a rank."""
        tensors.check_cpu(tensor_list)
        self._check_usable()
        return self._mail.send(tensor_list[0], to, tag, Deadline(self._seconds))

    def recv(self, tensor_list: list[Tensor], source: int, tag: int = 0) -> Work:
        """Begin to receive a tensor from a rank."""
        tensors.check_cpu(tensor_list)
        self._check_usable()
        return self._mail.recv(tensor_list[0], source, tag, Deadline(self._seconds))

    def recv_anysource(self, tensor_list: list[Tensor], tag: int = 0) -> Work:
        """Begin to receive a tensor from whoever sends one."""
        return self.recv(tensor_list, ANY, tag)

    # -- the group itself

    def shutdown(self) -> None:
        """Leave the group; ranks that still wait for this one are told so."""
        if self._left:
            return
        self._left = True
        if self._broken is None:
            self._break(f"{self._peers.name(self._rank)} has left the group (destroy_process_group)")
        # What is under way may end, if the others take part; it must not keep this rank for ever.
        self._peers.stopped = "the group was left meanwhile"
        self._turns.close()
        self._mail.close()
        self._peers.close()
        # torch keeps groups in cycles; the memory must not wait for the garbage collector.
        del self._memory, self._exchange, self._small, self._large, self._mail, self._peers

    def abort(self) -> None:
        """Leave the group without waiting for what is under way."""
        if not self._left:
            self._peers.stopped = "the group was aborted"
            self._break(f"{self._peers.name(self._rank)} has aborted the group")

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time limit of operations to come."""
        self._seconds = timeout.total_seconds()
