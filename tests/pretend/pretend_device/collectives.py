"""`pccl`: collectives for tensors of the pretend devices, and of nothing else, as NCCL's are: gloo on copies.

As NCCL's they run on a stream of their own, which begins after what the caller's stream has been given so far. The
caller's stream is after them only if somebody waits for the work: else the next use of the tensors is a race. Their
memory is safe even so: it is not given to another tensor before the collective has ended.

As with NCCL, tags say nothing: messages of two ranks come in the order in which they were sent. And a group that
carries single messages both ways between two ranks is refused, because NCCL's would wait for each other; a batch of
them has tag 0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from pretend_device import _device
from torch import Tensor

from lockstep.comm.work import MAX_KEPT, MAX_KEPT_BYTES
from lockstep.torch_compat.process_group import FORMER_NAMES, PythonProcessGroup, PythonWork, with_former_names

NO_TAG = 0
FORMER = {name: former for former, name in FORMER_NAMES.items()}


def create(options: Any, _: Any = None) -> Group:
    """Return the group of a process, as torch asks for it."""
    gloo = dist.ProcessGroupGloo(options.store, options.group_rank, options.group_size, timeout=options.timeout)
    return Group(gloo, options.group_rank, options.group_size, options.timeout)


@contextmanager
def within() -> Iterator[None]:
    """What the devices do among themselves is no copy and no wait of the host's."""
    before = _device.set_uncounted(True)
    try:
        yield
    finally:
        _device.set_uncounted(before)


def down(tensors: Any) -> Any:
    """Return copies on the CPU, where gloo can read them; what is there already is not ours to send."""
    if isinstance(tensors, (list, tuple)):
        return [down(one) for one in tensors]
    if tensors.device.type != "pretend":
        raise RuntimeError(f"No backend type associated with device type {tensors.device.type}")
    return tensors.detach().cpu().contiguous()


def up(tensors: Any, values: Any) -> None:
    """Put results where they belong."""
    if isinstance(tensors, (list, tuple)):
        for tensor, value in zip(tensors, values, strict=True):
            up(tensor, value)
    else:
        tensors.detach().copy_(values.view(tensors.shape))


def _all_of(tensors: Any) -> Iterator[Tensor]:
    """Yield the tensors of nested lists."""
    if isinstance(tensors, Tensor):
        yield tensors
    else:
        for one in tensors or ():
            yield from _all_of(one)


class Done(PythonWork):
    """Work that is done on the stream of the collectives; its tensors stay until somebody has waited for it."""

    def __init__(self, result: Any, ended: torch.Event | None = None, device: torch.device | None = None) -> None:
        super().__init__()
        self._result, self._ended, self._device = result, ended, device

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Let the current stream wait; the host does not."""
        if self._ended is not None:
            torch.accelerator.current_stream(self._device).wait_event(self._ended)
        return True

    def is_completed(self) -> bool:
        """It is."""
        return True

    def is_success(self) -> bool:
        """It is."""
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future that has its result; the current stream waits at once."""
        self.wait()
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(self._result if isinstance(self._result, list) else [self._result])
        return future

    def result(self) -> Any:
        """Return the tensors."""
        return self._result


class Sending(Done):
    """A message on its way; the copy that it is read from stays until it has left."""

    def __init__(self, work: dist.Work, copies: Any) -> None:
        super().__init__([])
        self._work, self._copies = work, copies

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait until the receiver has it."""
        self._work.wait()
        return True

    def is_completed(self) -> bool:
        """Say whether it has left."""
        return bool(self._work.is_completed())


class Receiving(Done):
    """A message that is put in place, on the stream of the collectives, when somebody waits for it."""

    def __init__(self, work: dist.Work, land: Callable[[], Done]) -> None:
        super().__init__([])
        self._work, self._land, self._landed = work, land, None

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait until it is there; the current stream comes after it."""
        if self._landed is None:
            self._work.wait()
            self._landed = self._land()
        return self._landed.wait()

    def is_completed(self) -> bool:
        """Say whether it has come."""
        return bool(self._work.is_completed())


@with_former_names
class Group(PythonProcessGroup):
    """Each collective on copies, by gloo."""

    def __init__(self, gloo: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size, "pccl", timeout)
        self._gloo = gloo
        self._streams: dict[torch.device, torch.Stream] = {}
        self._ways: dict[int, str] = {}
        """Which way single messages go, by the other rank."""
        self._kept: deque[Done] = deque(maxlen=MAX_KEPT)  # see [Note: who keeps a Work]

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("pretend")]

    def _get_backend(self, device: torch.device) -> Any:
        return self

    def _set_default_timeout(self, timeout: timedelta) -> None:
        """Keep the timeout that gloo got when the group was made."""

    def _run(self, call: Callable[..., Any], outputs: Any, inputs: Any, *rest: Any) -> Done:
        """Run one collective; `inputs` None: the outputs are what goes in as well."""

        def act() -> None:
            taken = down(outputs) if inputs is None or outputs is not inputs else None
            sent = down(inputs) if inputs is not None else None
            work = call(taken, *rest) if sent is None else call(taken, sent, *rest)
            work.wait()
            up(outputs, taken)

        used = [*_all_of(outputs), *_all_of(inputs)]
        return self._on_stream(used, outputs, self._now(used[0].device), act)

    def _now(self, device: torch.device) -> torch.Event:
        """Return what the current stream has been given so far."""
        now = torch.Event(device=device)
        now.record(torch.accelerator.current_stream(device))
        return now

    def _on_stream(self, used: list[Tensor], result: Any, after: torch.Event, act: Callable[[], None]) -> Done:
        """Do something with tensors on the stream of the collectives, after an event."""
        device = used[0].device
        if device not in self._streams:
            self._streams[device] = torch.Stream(device=device)
        stream, ended = self._streams[device], torch.Event(device=device)
        with within(), stream:
            stream.wait_event(after)
            act()
            for one in used:
                one.record_stream(stream)
            ended.record(stream)
        done = Done(result, ended, device)
        if sum(one.nbytes for one in used) <= MAX_KEPT_BYTES:
            self._kept.append(done)
        return done

    def allreduce(self, tensors: Any, opts: Any = None) -> Done:
        tensors = tensors if isinstance(tensors, list) else [tensors]
        return self._run(self._gloo.allreduce, tensors, None, *([opts] if opts else []))

    def broadcast(self, tensors: Any, opts: Any) -> Done:
        return self._run(self._gloo.broadcast, tensors, None, opts)

    def reduce(self, tensors: Any, opts: Any) -> Done:
        return self._run(self._gloo.reduce, tensors, None, opts)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Done:
        return self._run(self._gloo.allgather, outputs, inputs)

    def gather(self, outputs: Any, inputs: Any, opts: Any) -> Done:
        return self._run(self._gloo.gather, outputs, inputs, opts)

    def scatter(self, outputs: Any, inputs: Any, opts: Any) -> Done:
        return self._run(self._gloo.scatter, outputs, inputs, opts)

    def all_gather_single(self, output: Tensor, given: Tensor, opts: Any = None) -> Done:
        return self._run(self._former("all_gather_single"), output, given)

    def reduce_scatter_single(self, output: Tensor, given: Tensor, opts: Any = None) -> Done:
        return self._run(self._former("reduce_scatter_single"), output, given, *([opts] if opts else []))

    def all_to_all_single(self, output: Tensor, given: Tensor, to: Any, come: Any, opts: Any = None) -> Done:
        return self._run(self._former("all_to_all_single"), output, given, to, come)

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Done:
        for output, given in zip(outputs, inputs, strict=True):
            self.all_gather_single(output, given)
        return Done(list(outputs))

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Done:
        for output, given in zip(outputs, inputs, strict=True):
            self.reduce_scatter_single(output, given, opts)
        return Done(list(outputs))

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Done:
        for one in tensors:
            options = dist.AllreduceOptions()
            if opts is not None:
                options.reduceOp = opts.reduceOp
            self.allreduce([one], options)
        return Done(list(tensors))

    def _check_way(self, other: int, way: str, tag: int) -> None:
        if tag and self._ways.setdefault(other, way) != way:
            raise RuntimeError(f"a message {way} rank {other} in a group that carries messages the other way")

    def send(self, tensors: Any, to: int, tag: int) -> Done:
        self._check_way(to, "to", tag)
        with within():
            copies = down(tensors)
        return Sending(self._gloo.send(copies, to, NO_TAG), copies)

    def recv(self, tensors: Any, source: int, tag: int) -> Done:
        """Begin to receive: the host goes on, as with NCCL's."""
        self._check_way(source, "from", tag)
        device = tensors[0].device
        after, copies = self._now(device), [torch.empty(one.shape, dtype=one.dtype) for one in tensors]
        work = self._gloo.recv(copies, source, NO_TAG)
        return Receiving(work, lambda: self._on_stream(tensors, tensors, after, lambda: up(tensors, copies)))

    def barrier(self, opts: Any = None) -> Done:
        self._gloo.barrier().wait()
        return Done([])

    def _former(self, name: str) -> Callable[..., Any]:
        return getattr(self._gloo, name, None) or getattr(self._gloo, FORMER[name])
