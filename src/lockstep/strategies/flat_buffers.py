"""A model's buffers in flat tensors: every lane starts from the same, and the float ones are averaged over lanes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lockstep.lanes.flat_layout import Section, lay_out
from lockstep.torch_compat.modules import buffers_of

BufferValues = tuple[list[Tensor], list[Tensor]]
"""Of the float buffers, one flat tensor per dtype; of the others."""


class FlatBuffers:
    """A model's buffers: the float ones as views of one flat tensor per dtype, the others as they are.

    Every lane starts from the step's first values. Float buffers are averaged over lanes; integer counters advance once
    per step.
    """

    def __init__(self, model: nn.Module, workers: int) -> None:
        places: dict[int, tuple[nn.Module, str]] = {}
        own = {id(buffer) for buffer in model.buffers()}
        for module in model.modules():
            for name, buffer in buffers_of(module).items():
                if buffer is not None and id(buffer) in own:
                    places.setdefault(id(buffer), (module, name))
        self._places = list(places.values())
        tensors = [_buffer(place) for place in self._places]
        self._floats = [i for i, t in enumerate(tensors) if t.is_floating_point()]
        self._others = [i for i, t in enumerate(tensors) if not t.is_floating_point()]
        shapes = [tuple(tensors[i].shape) for i in self._floats]
        dtypes = [tensors[i].dtype for i in self._floats]
        self.sections: list[Section] = lay_out(shapes, dtypes, workers) if shapes else []
        self.now = [torch.zeros(s.numel, dtype=_dtype(s), device=tensors[0].device) for s in self.sections]
        self._views: dict[int, Tensor] = {}
        for section, flat in zip(self.sections, self.now, strict=True):
            for slot in section.slots:
                self._views[self._floats[slot.index]] = flat[slot.start : slot.stop].view(slot.shape)
        for index, view in self._views.items():
            view.copy_(tensors[index])
            self._point(index)
        self.first = [flat.clone() for flat in self.now]
        self._first_others = [tensors[i].clone() for i in self._others]

    def restore(self) -> None:
        """Return to the step's first values."""
        self.put((self.first, self._first_others))

    def copy(self) -> BufferValues:
        """Return a copy of the present values, for `put`."""
        self.collect()
        return [flat.clone() for flat in self.now], [_buffer(self._places[index]).clone() for index in self._others]

    def put(self, values: BufferValues) -> None:
        """Set all buffers, behind autograd's back: lanes whose backward is still to come may have saved them.

        What such a lane saved and reads again is what it saved: a buffer that forward changes is not read in backward.
        """
        floats, others = values
        for flat, value in zip(self.now, floats, strict=True):
            flat.data.copy_(value)
        for index, value in zip(self._others, others, strict=True):
            _buffer(self._places[index]).data.copy_(value)

    def collect(self) -> None:
        """Copy buffers that a module has replaced (assigned, not only changed) back into our views."""
        for index, view in self._views.items():
            module, name = self._places[index]
            if buffers_of(module)[name] is not view:
                view.copy_(_buffer(self._places[index]))
                self._point(index)

    def pack_others(self) -> Tensor:
        """Return the buffers that are not floats as one row of numbers (exact up to 2**53)."""
        parts = [_buffer(self._places[index]).flatten().double() for index in self._others]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)

    def finish(self, floats: Sequence[Tensor], others: Tensor) -> None:
        """Set the first values of the next step."""
        for first, value in zip(self.first, floats, strict=True):
            first.copy_(value)
        sizes = [first.numel() for first in self._first_others]
        for first, value in zip(self._first_others, torch.split(others, sizes) if sizes else (), strict=True):
            first.copy_(value.view_as(first))
        self.restore()

    def settle(self) -> None:
        """Let what the modules hold now be the values that the next step starts from."""
        self.collect()
        for first, flat in zip(self.first, self.now, strict=True):
            first.copy_(flat)
        for first, index in zip(self._first_others, self._others, strict=True):
            first.copy_(_buffer(self._places[index]))

    def _point(self, index: int) -> None:
        module, name = self._places[index]
        buffers_of(module)[name] = self._views[index]


def _buffer(place: tuple[nn.Module, str]) -> Tensor:
    buffer = buffers_of(place[0])[place[1]]
    assert buffer is not None
    return buffer


def _dtype(section: Section) -> torch.dtype:
    assert isinstance(section.key, torch.dtype)
    return section.key
