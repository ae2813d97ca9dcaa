"""A model on flat buffers: weights are views of one, gradients fold into another, lane by lane."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from lockstep.errors import BadInput
from lockstep.lanes.layout import Section, lay_out

if TYPE_CHECKING:
    from lockstep.lanes.tree import Fold


class FlatModel:
    """Re-points a model's parameters and float buffers into flat tensors, and catches its gradients.

    A lane:  1. `begin`  float buffers go back to the step's first value, gradients will go to a fold's buffer
             2. forward and backward; each gradient, as soon as it is there, is put or added into its place
             3. `end`    what got no gradient counts as zero; the float buffers fold like the gradients

    [Note: zeros are added]
    A parameter without a gradient, and a lane without samples, add an explicit zero: x + 0 turns a negative
    zero into a positive one, and must do so whether or not the zero comes from another worker.
    """

    def __init__(self, model: nn.Module, keys: Sequence[int], workers: int) -> None:
        self.model = model
        self.names = [name for name, p in model.named_parameters() if p.requires_grad]
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        if not self.parameters:
            raise BadInput("the model has no parameter that requires a gradient: there is nothing to train")
        self.sections = lay_out(
            [tuple(p.shape) for p in self.parameters],
            [(key, p.dtype) for key, p in zip(keys, self.parameters, strict=True)],
            workers,
        )
        self.buffers = FlatBuffers(model, workers)
        self._targets: list[Tensor] = []
        self._views: dict[int, list[Tensor]] = {}
        self._fresh = True
        self._fired = [False] * len(self.parameters)
        for index, parameter in enumerate(self.parameters):
            parameter.register_post_accumulate_grad_hook(self._catcher(index))  # type: ignore[no-untyped-call]

    def attach(self, weights: Sequence[Tensor], *, fill: bool) -> None:
        """Make the parameters views of these flat weights (one per section); `fill` copies their values there."""
        for section, flat in zip(self.sections, weights, strict=True):
            for slot in section.slots:
                parameter = self.parameters[slot.index]
                view = flat[slot.start : slot.stop].view(slot.shape)
                if fill:
                    view.copy_(parameter.detach())
                parameter.data = view

    def views(self, flats: Sequence[Tensor]) -> list[Tensor]:
        """Return flat tensors (one per section) as one tensor per parameter, in parameter order."""
        found: list[Tensor] = [torch.empty(0)] * len(self.parameters)
        for section, flat in zip(self.sections, flats, strict=True):
            for slot in section.slots:
                found[slot.index] = flat[slot.start : slot.stop].view(slot.shape)
        return found

    def begin(self, fold: Fold, buffers: Sequence[Sequence[Tensor]]) -> None:
        """Start a lane: its gradients go into buffer `fold.buffer` (each a flat tensor per section)."""
        target = buffers[fold.buffer]
        key = target[0].data_ptr()
        if key not in self._views:
            self._views[key] = self.views(target)
        self._targets, self._fresh = self._views[key], fold.fresh
        self._fired = [False] * len(self.parameters)
        self.buffers.restore()

    def end(self) -> None:
        """Finish a lane: a parameter that got no gradient adds zero, see [Note: zeros are added]."""
        if not all(self._fired):
            for index, fired in enumerate(self._fired):
                if not fired:
                    self._put(index, None)
        self.buffers.collect()

    def _catcher(self, index: int) -> Callable[[Tensor], None]:
        def catch(parameter: Tensor) -> None:
            gradient = parameter.grad
            parameter.grad = None  # freed as soon as it is folded, and stolen, not added to, the next time
            self._put(index, gradient)
            self._fired[index] = True

        return catch

    def _put(self, index: int, gradient: Tensor | None) -> None:
        target = self._targets[index]
        if gradient is None:
            target.zero_() if self._fresh else target.add_(0.0)
        elif gradient.is_sparse:
            raise BadInput(f"{self.names[index]} has a sparse gradient: use sparse=False in its embedding")
        elif self._fresh:
            target.copy_(gradient)
        else:
            target.add_(gradient)


class FlatBuffers:
    """A model's buffers: the float ones as views of one flat tensor per dtype, the others by themselves.

    Every lane starts from the step's first value. Float buffers are averaged over lanes; integer counters
    advance once a step.
    """

    def __init__(self, model: nn.Module, workers: int) -> None:
        places: dict[int, tuple[nn.Module, str]] = {}
        for module in model.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    places.setdefault(id(buffer), (module, name))
        self._places = list(places.values())
        tensors = [_buffer(place) for place in self._places]
        self._floats = [i for i, t in enumerate(tensors) if t.is_floating_point()]
        self._others = [i for i, t in enumerate(tensors) if not t.is_floating_point()]
        shapes = [tuple(tensors[i].shape) for i in self._floats]
        self.sections: list[Section] = lay_out(shapes, [tensors[i].dtype for i in self._floats], workers)
        self.sections = self.sections if shapes else []
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
        """Go back to the step's first values."""
        for flat, first in zip(self.now, self.first, strict=True):
            flat.copy_(first)
        for index, first in zip(self._others, self._first_others, strict=True):
            _buffer(self._places[index]).copy_(first)

    def collect(self) -> None:
        """Take in what modules put in place of our views (a buffer may be assigned, not only changed)."""
        for index, view in self._views.items():
            module, name = self._places[index]
            if module._buffers[name] is not view:
                view.copy_(_buffer(self._places[index]))
                self._point(index)

    def pack_others(self) -> Tensor:
        """Return the buffers that are not floats as one row of numbers (exact up to 2**53)."""
        parts = [_buffer(self._places[index]).flatten().double().cpu() for index in self._others]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)

    def finish(self, floats: Sequence[Tensor], others: Tensor) -> None:
        """Set the values that the next step starts from."""
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
        module._buffers[name] = self._views[index]


def _buffer(place: tuple[nn.Module, str]) -> Tensor:
    found = place[0]._buffers[place[1]]
    assert found is not None
    return found


def _dtype(section: Section) -> torch.dtype:
    assert isinstance(section.key, torch.dtype)
    return section.key
