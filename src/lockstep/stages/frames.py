"""A frame: a description and the tensors that it describes as one run of bytes, so that they pass in one message.

    | length, size, inside |  description ...  |  tensor ...  |  tensor ...  |      each tensor starts at a cache line

Large tensors, and those of accelerators, follow one by one: copying them would cost more than a message.

[Note: usual size]
A receiver must know the size of a message before it comes. Both sides expect the size of the frame before, on the same
way: what is shorter is filled up, and the rest of what is longer follows in a second message. Lanes are mostly alike.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from lockstep.stages.values import TensorForm

FIRST = 8192
"""The size that is expected of the first frame: a description with the state of a random stream."""
INSIDE = 1 << 20
"""Bytes of tensors that go into a frame."""
ALIGN = 64
_NUMBERS = struct.Struct("<QQQ")


def may_hold(elements: Sequence[Tensor]) -> bool:
    """Say whether flat tensors go into a frame."""
    return all(one.is_cpu for one in elements) and sum(one.nbytes for one in elements) <= INSIDE


def fill(content: bytes, elements: Sequence[Tensor] | None, usual: int) -> tuple[Tensor, int]:
    """Return a frame that is at least as long as usual, and the size that is used; `elements` None: they follow."""
    places, size = _places(len(content), [one.nbytes for one in elements or ()])
    frame = torch.empty(max(size, usual), dtype=torch.uint8)
    view = frame.numpy().data
    _NUMBERS.pack_into(view, 0, len(content), size, elements is not None)
    view[_NUMBERS.size : _NUMBERS.size + len(content)] = content
    for place, one in zip(places, elements or (), strict=True):
        frame[place : place + one.nbytes].copy_(one.view(torch.uint8))
    frame[size:].zero_()
    return frame, size


def size_of(frame: Tensor) -> int:
    """Return the size that is used, from a frame's beginning."""
    return int(_NUMBERS.unpack_from(frame.numpy().data)[1])


def usual_after(size: int, usual: int) -> int:
    """Return the size to expect of the next frame: that of the last one, unless it was only a little smaller."""
    return usual if usual // 2 < size <= usual else max(FIRST, -(-size // FIRST) * FIRST)


class Frame:
    """A frame that has arrived whole."""

    def __init__(self, frame: Tensor) -> None:
        self._frame = frame
        view = frame.numpy().data
        length, _, inside = _NUMBERS.unpack_from(view)
        self.content = view[_NUMBERS.size : _NUMBERS.size + length].tobytes()
        """The description."""
        self.inside = bool(inside)
        """Whether the tensors are here, or follow."""

    def tensors(self, forms: Sequence[TensorForm]) -> list[Tensor]:
        """Return the tensors over the frame's memory, each as if it were alone in it."""
        memory, made = self._frame.untyped_storage(), []
        places, _ = _places(len(self.content), [form.nbytes for form in forms])
        for form, place in zip(forms, places, strict=True):
            tensor = form.empty()  # no view of the frame: changing one of them in place is no change of the others
            made.append(tensor.set_(memory, place // tensor.itemsize, form.shape, form.strides))
        return made


def _places(content: int, sizes: Sequence[int]) -> tuple[list[int], int]:
    """Return where tensors of these sizes in bytes start behind a description, and the size of all."""
    places, end = [], _NUMBERS.size + content
    for size in sizes:
        places.append(-(-end // ALIGN) * ALIGN)
        end = places[-1] + size
    return places, end
