"""Values and their gradients between the stages of a replica: a header of fixed size, then one message per tensor.

    forward    header: what passes, the lane's random state      then the tensors
    backward   which tensors have a gradient                     then the gradients
    shared     whether there is a gradient                       then the gradient of a weight that several stages use

Sends are not waited for before the end of the step. What is sent is kept until then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from lockstep.stages.values import PassedValue, TensorForm, flat_elements, form_of

if TYPE_CHECKING:
    from lockstep.comm.group import Group

HEADER = 8192
"""Bytes of the first message of a value; what does not fit follows in another one."""
FORWARD, BACKWARD, WEIGHT, SHARED = 1, 2, 3, 4
"""Tags; a shared weight's gradients have SHARED and more, one tag per weight."""


class Arrived(NamedTuple):
    """A value from the stage before."""

    packed: PassedValue
    tensors: list[Tensor]
    random: list[bytes]
    """The state of the lane's random stream."""


class _Header(msgspec.Struct, frozen=True, array_like=True):
    packed: PassedValue
    random: list[bytes]


class Transfer:
    """Messages between this stage and the others of its replica."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._pending: list[tuple[dist.Work, Tensor]] = []
        self.sent = 0
        """Bytes of elements that this stage has sent."""

    def send_value(self, packed: PassedValue, tensors: Sequence[Tensor], random: list[bytes]) -> None:
        """Send a value to the next stage."""
        content = msgspec.msgpack.encode(_Header(packed, random))
        framed = len(content).to_bytes(8, "little") + content
        self._send(_bytes(framed[:HEADER].ljust(HEADER, b"\0")), self._group.rank + 1, FORWARD)
        if len(framed) > HEADER:
            self._send(_bytes(framed[HEADER:]), self._group.rank + 1, FORWARD)
        for tensor, form in zip(tensors, packed.tensors, strict=True):
            self._send(flat_elements(tensor, form), self._group.rank + 1, FORWARD)

    def receive_value(self) -> Arrived:
        """Wait for the value of the stage before."""
        source = self._group.rank - 1
        first = self._receive(torch.empty(HEADER, dtype=torch.uint8), source, FORWARD).numpy().tobytes()
        length = int.from_bytes(first[:8], "little")
        content = first[8 : 8 + length]
        if 8 + length > HEADER:
            rest = torch.empty(8 + length - HEADER, dtype=torch.uint8)
            content += self._receive(rest, source, FORWARD).numpy().tobytes()
        header = msgspec.msgpack.decode(content, type=_Header)
        forms = header.packed.tensors
        tensors = [form.shaped(self._receive(form.room(self._group.device), source, FORWARD)) for form in forms]
        return Arrived(header.packed, tensors, header.random)

    def send_gradients(self, gradients: Sequence[Tensor | None]) -> None:
        """Send the gradients of a value to the stage that it came from."""
        self._send_optional(gradients, self._group.rank - 1, BACKWARD)

    def receive_gradients(self, count: int) -> list[Tensor | None]:
        """Wait for the gradients of a value that was sent to the next stage."""
        return self._receive_optional(count, self._group.rank + 1, BACKWARD)

    def send_shared(self, gradient: Tensor | None, to: int, number: int) -> None:
        """Send a lane's gradient of a shared weight to the stage before that uses it."""
        self._send_optional([gradient], to, SHARED + number)

    def receive_shared(self, source: int, number: int) -> Tensor | None:
        """Wait for a lane's gradient of a shared weight from the stage after that uses it."""
        return self._receive_optional(1, source, SHARED + number)[0]

    def send_weight(self, weight: Tensor, to: int) -> None:
        """Send a shared weight to a stage that borrows it."""
        self._send(weight.detach().contiguous().flatten(), to, WEIGHT)

    def receive_weight(self, weight: Tensor, source: int) -> None:
        """Renew a weight that is borrowed from another stage."""
        flat = torch.empty(weight.numel(), dtype=weight.dtype, device=self._group.device)
        self._receive(flat, source, WEIGHT)
        with torch.no_grad():
            weight.copy_(flat.view(weight.shape))

    def finish(self) -> None:
        """Wait until everything that was sent has left."""
        pending, self._pending = self._pending, []
        for work, _ in pending:
            work.wait()

    def _send_optional(self, values: Sequence[Tensor | None], to: int, tag: int) -> None:
        forms = [None if value is None else form_of(value) for value in values]
        content = msgspec.msgpack.encode(forms)
        frame = len(content).to_bytes(8, "little") + content
        size = _frame_bytes(len(values))
        self._send(_bytes(frame.ljust(size, b"\0")), to, tag)
        for value, form in zip(values, forms, strict=True):
            if value is not None and form is not None:
                self._send(flat_elements(value, form), to, tag)

    def _receive_optional(self, count: int, source: int, tag: int) -> list[Tensor | None]:
        frame = self._receive(torch.empty(_frame_bytes(count), dtype=torch.uint8), source, tag).numpy().tobytes()
        length = int.from_bytes(frame[:8], "little")
        forms = msgspec.msgpack.decode(frame[8 : 8 + length], type=list[TensorForm | None])
        return [
            None if form is None else form.shaped(self._receive(form.room(self._group.device), source, tag))
            for form in forms
        ]

    def _send(self, flat: Tensor, to: int, tag: int) -> None:
        if not flat.numel():
            return
        flat = flat.to(self._group.device).view(torch.uint8)
        work = dist.isend(flat, group=self._group.process_group, group_dst=to, tag=tag)
        assert work is not None
        self._pending = [one for one in self._pending if not one[0].is_completed()]
        self._pending.append((work, flat))
        self.sent += flat.numel()

    def _receive(self, flat: Tensor, source: int, tag: int) -> Tensor:
        if flat.numel():
            landed = flat.to(self._group.device)
            dist.recv(landed.view(torch.uint8), group=self._group.process_group, group_src=source, tag=tag)
            flat = landed if flat.device == landed.device else landed.to(flat.device)
        return flat


def _frame_bytes(values: int) -> int:
    """Return the fixed size of a message that describes so many tensors: both sides know it."""
    return 8 + 256 * max(values, 1)


def _bytes(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)
