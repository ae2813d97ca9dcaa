"""Values and their gradients between the stages of a replica, each in one message if it is not large: see frames.py.

    forward    what passes, the lane's random state              the tensors
    backward   which tensors have a gradient, the lane's loss    the gradients
    shared     whether there is a gradient                       the gradient of a weight that several stages use

Sends are not waited for before the end of the step. What is sent is kept until then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from lockstep.stages import frames
from lockstep.stages.values import PassedValue, TensorForm, flat_elements, form_of

if TYPE_CHECKING:
    from lockstep.comm.group import Group

FORWARD, BACKWARD, WEIGHT, SHARED = 1, 2, 3, 4
"""Tags; a shared weight's gradients have SHARED and more, one tag per weight."""


LossNumbers = tuple[float, float]
"""Of a lane: its loss as a sum, and the weight of that sum."""


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

    def __init__(self, group: Group, toward_first: Group) -> None:
        self._group, self._toward_first = group, toward_first
        self._pending: list[tuple[dist.Work, Tensor]] = []
        self._usual_out: dict[tuple[int, int], int] = {}
        self._usual_in: dict[tuple[int, int], int] = {}
        """What size of a frame to expect, by peer and tag, see [Note: usual size] in frames.py."""
        self.sent = 0
        """Bytes of elements that this stage has sent."""

    def send_value(self, packed: PassedValue, tensors: Sequence[Tensor], random: list[bytes]) -> None:
        """Send a value to the next stage."""
        elements = [flat_elements(tensor, form) for tensor, form in zip(tensors, packed.tensors, strict=True)]
        self._send_frame(msgspec.msgpack.encode(_Header(packed, random)), elements, self._group.rank + 1, FORWARD)

    def receive_value(self) -> Arrived:
        """Wait for the value of the stage before."""
        source = self._group.rank - 1
        frame = self._receive_frame(source, FORWARD)
        header = msgspec.msgpack.decode(frame.content, type=_Header)
        tensors = self._receive_tensors(frame, header.packed.tensors, source, FORWARD)
        return Arrived(header.packed, tensors, header.random)

    def send_gradients(self, gradients: Sequence[Tensor | None], loss: LossNumbers) -> None:
        """Send the gradients of a value to the stage that it came from, with the loss of its lane."""
        self._send_optional(gradients, self._group.rank - 1, BACKWARD, loss)

    def receive_gradients(self) -> tuple[list[Tensor | None], LossNumbers]:
        """Wait for the gradients of a value that was sent to the next stage, and for the loss of its lane."""
        return self._receive_optional(self._group.rank + 1, BACKWARD)

    def send_shared(self, gradient: Tensor | None, to: int, number: int) -> None:
        """Send a lane's gradient of a shared weight to the stage before that uses it."""
        self._send_optional([gradient], to, SHARED + number)

    def receive_shared(self, source: int, number: int) -> Tensor | None:
        """Wait for a lane's gradient of a shared weight from the stage after that uses it."""
        return self._receive_optional(source, SHARED + number)[0][0]

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

    def _send_optional(
        self, values: Sequence[Tensor | None], to: int, tag: int, numbers: LossNumbers = (0.0, 0.0)
    ) -> None:
        forms = [None if value is None else form_of(value) for value in values]
        both = zip(values, forms, strict=True)
        elements = [flat_elements(value, form) for value, form in both if value is not None and form is not None]
        self._send_frame(msgspec.msgpack.encode((forms, numbers)), elements, to, tag)

    def _receive_optional(self, source: int, tag: int) -> tuple[list[Tensor | None], LossNumbers]:
        frame = self._receive_frame(source, tag)
        forms, numbers = msgspec.msgpack.decode(frame.content, type=tuple[list[TensorForm | None], LossNumbers])
        tensors = iter(self._receive_tensors(frame, [form for form in forms if form is not None], source, tag))
        return [None if form is None else next(tensors) for form in forms], numbers

    def _send_frame(self, content: bytes, elements: Sequence[Tensor], to: int, tag: int) -> None:
        inside = self._group.device == "cpu" and frames.may_hold(elements)
        usual = self._usual_out.get((to, tag), frames.FIRST)
        frame, size = frames.fill(content, elements if inside else None, usual)
        self._usual_out[to, tag] = frames.usual_after(size, usual)
        self._send(frame[:usual], to, tag)
        self._send(frame[usual:], to, tag)
        for one in () if inside else elements:
            self._send(one, to, tag)

    def _receive_frame(self, source: int, tag: int) -> frames.Frame:
        usual = self._usual_in.get((source, tag), frames.FIRST)
        frame = self._receive(torch.empty(usual, dtype=torch.uint8), source, tag)
        size = frames.size_of(frame)
        self._usual_in[source, tag] = frames.usual_after(size, usual)
        if size > usual:
            frame = torch.cat([frame, self._receive(torch.empty(size - usual, dtype=torch.uint8), source, tag)])
        return frames.Frame(frame)

    def _receive_tensors(self, frame: frames.Frame, forms: Sequence[TensorForm], source: int, tag: int) -> list[Tensor]:
        if frame.inside:
            return frame.tensors(forms)
        return [form.shaped(self._receive(form.room(self._group.device), source, tag)) for form in forms]

    def _send(self, flat: Tensor, to: int, tag: int) -> None:
        if not flat.numel():
            return
        flat = flat.to(self._group.device).view(torch.uint8)
        work = dist.isend(flat, group=self._carrier(self._group.rank, to), group_dst=to, tag=tag)
        assert work is not None
        self._pending = [one for one in self._pending if not one[0].is_completed()]
        self._pending.append((work, flat))
        self.sent += flat.numel()

    def _receive(self, flat: Tensor, source: int, tag: int) -> Tensor:
        if flat.numel():
            landed = flat.to(self._group.device)
            carrier = self._carrier(source, self._group.rank)
            dist.recv(landed.view(torch.uint8), group=carrier, group_src=source, tag=tag)
            flat = landed if flat.device == landed.device else landed.to(flat.device)
        return flat

    def _carrier(self, source: int, to: int) -> dist.ProcessGroup | None:
        """Return what carries a message between two stages, see [Note: a group for each direction] in mesh.py."""
        return (self._group if source < to else self._toward_first).process_group
