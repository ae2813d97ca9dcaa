"""A model on flat buffers: weights are views of one, gradients fold into another, lane by lane.

[Note: large and small gradients]
A hook folds a large gradient as soon as it is there. A small one costs less to add than its hook to call: backward
itself adds it to `.grad`, which is a view of the place where it belongs. No small one is kept for later: small tensors
that stay between large ones make the heap grow and shrink in every step, which costs more than all of this.

[Note: gradients in pieces]
A re-entrant checkpoint hands over a gradient in pieces. They must add up to the lane's gradient before they meet other
lanes; in a fresh place, or while they wait, they may be added one by one. So a gradient is folded at once only where it
is the first, or after it was seen to come whole. Until then every parameter has a hook.

[Note: pairs]
Of two lanes whose gradients are added to each other, the first one's large gradients wait where backward made them, and
are added to the second one's in one go, see merging.py. That takes room for one set of them, so accelerators do not do
it. As where torch itself accumulates, nobody else may write to a gradient that was handed over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from lockstep.errors import BadInput
from lockstep.lanes.flat_layout import Section, lay_out
from lockstep.lanes.tree import Fold
from lockstep.strategies.merging import Merger
from lockstep.torch_compat.modules import buffers_of

LARGE = 1 << 15
"""Elements from which on a gradient is large."""


class FlatModel:
    """Re-points a model's parameters and float buffers into flat tensors, and catches its gradients.

    A lane:  1. `begin`  float buffers go back to the step's first value, gradients will go to a fold's buffer
             2. forward and backward; each gradient is put or added into its place, see also merging.py
             3. `end`    what got no gradient counts as zero; the float buffers fold like the gradients
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
        self._sums: Sequence[Sequence[Tensor]] = []
        """What gradients fold into: each a flat tensor per section."""
        self._targets: list[Tensor] = []
        self._above: list[list[Tensor]] = []
        """The sums that a large gradient's sum is added to in turn, each as one view per parameter."""
        self._merger = Merger()
        self._waiting: dict[int, Tensor] = {}
        """Large gradients of the lane before, see [Note: pairs]."""
        self._views: dict[int, list[Tensor]] = {}
        self._fold = Fold(0, True, ())
        self._large = {index for index, p in enumerate(self.parameters) if p.numel() >= LARGE}
        self._small = [_without(section, self._large) for section in self.sections]
        self._fired: Counter[int] = Counter()
        self._whole: set[int] = set()
        """Whose gradient was seen to come in one piece."""
        self._hooks = {
            index: parameter.register_post_accumulate_grad_hook(self._catcher(index))  # type: ignore[no-untyped-call]
            for index, parameter in enumerate(self.parameters)
        }
        self._in_place: list[int] = []
        """Those without a hook."""

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
        """Start a lane: its gradients go into buffer `fold.buffer` (each a flat tensor per section), or past it."""
        self._sums, self._fold = buffers, fold
        target = buffers[fold.buffer]
        self._targets = self._views_of(target)
        self._above = [self._views_of(buffers[left]) for left, _ in fold.merges]
        self._fired.clear()
        if fold.fresh:
            self._waiting.clear()
            for index in self._hooks:
                self.parameters[index].grad = None  # of a step that failed
            for flat, parts in zip(target, self._small, strict=True):
                for part in parts:
                    flat[part].zero_()
        for index in self._in_place:
            self.parameters[index].grad = self._targets[index]
        self.buffers.restore()

    def _views_of(self, flats: Sequence[Tensor]) -> list[Tensor]:
        """Return the views of flat tensors, made once."""
        key = flats[0].data_ptr()
        if key not in self._views:
            self._views[key] = self.views(flats)
        return self._views[key]

    def end(self) -> None:
        """Finish a lane: a parameter that got no gradient adds zero, and small sums are merged."""
        for index in self._in_place:
            self.parameters[index].grad = None
        for index in list(self._hooks):
            parameter, fired = self.parameters[index], self._fired[index]
            if parameter.grad is not None:
                self._put(index, parameter.grad)
                parameter.grad = None
            elif not fired and index in self._large:
                self._put_nothing(index)
            elif self._fold.fresh and fired == 1 and index not in self._whole:
                self._seen_whole(index)
        for left, right in self._fold.merges:
            for one, other, parts in zip(self._sums[left], self._sums[right], self._small, strict=True):
                for part in parts:
                    one[part].add_(other[part])
        self.buffers.collect()

    def _seen_whole(self, index: int) -> None:
        self._whole.add(index)
        if index not in self._large:
            self._hooks.pop(index).remove()
            self._in_place.append(index)

    def _catcher(self, index: int) -> Callable[[Tensor], None]:
        def catch(parameter: Tensor) -> None:
            gradient = parameter.grad
            assert gradient is not None
            if not self._fold.fresh and index not in self._whole:
                return  # all pieces add up there, and `end` takes them
            parameter.grad = None  # freed as soon as it is folded, and stolen, not added to, the next time
            self._fired[index] += 1
            if self._fired[index] == 1:
                self._put(index, gradient)
            elif self._fold.fresh:
                self._add_piece(index, gradient)
                self._whole.discard(index)
            else:
                raise BadInput(
                    f"{self.names[index]} got its gradient in several pieces, which it did not before: where the model "
                    "uses torch.utils.checkpoint, give it use_reentrant=False"
                )

        return catch

    def _put(self, index: int, gradient: Tensor) -> None:
        if gradient.is_sparse:
            raise BadInput(f"{self.names[index]} has a sparse gradient: use sparse=False in its embedding")
        if index not in self._large:
            self._targets[index].add_(gradient)
        elif self._fold.waits and gradient.is_cpu:
            self._waiting[index] = gradient
        elif self._fold.fresh:
            self._targets[index].copy_(gradient)
        else:
            self._complete(index, gradient)

    def _put_nothing(self, index: int) -> None:
        if self._fold.fresh:
            self._targets[index].zero_()
        else:
            self._complete(index, None)

    def _add_piece(self, index: int, gradient: Tensor) -> None:
        if index in self._waiting:  # not in place: it may share its memory with another gradient
            self._waiting[index] = self._waiting[index] + gradient
        else:
            self._targets[index].add_(gradient)

    def _complete(self, index: int, gradient: Tensor | None) -> None:
        """Add a large gradient, if there is one, to what waits for it or is in its place; that to the sums above."""
        first = self._waiting.pop(index, self._targets[index])
        terms = [first, *([] if gradient is None else [gradient]), *(sums[index] for sums in self._above)]
        self._merger.add_up(terms, out=terms[-1] if self._above else self._targets[index])


class FlatBuffers:
    """A model's buffers: the float ones as views of one flat tensor per dtype, the others by themselves.

    Every lane starts from the step's first value. Float buffers are averaged over lanes; integer counters
    advance once a step.
    """

    def __init__(self, model: nn.Module, workers: int) -> None:
        places: dict[int, tuple[nn.Module, str]] = {}
        for module in model.modules():
            for name, buffer in buffers_of(module).items():
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
            if buffers_of(module)[name] is not view:
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
        buffers_of(module)[name] = self._views[index]


def _without(section: Section, indices: set[int]) -> list[slice]:
    """Return the stretches of a section that hold none of these tensors."""
    stretches, start = [], 0
    for slot in section.slots:
        if slot.index in indices:
            stretches.append(slice(start, slot.start))
            start = slot.stop
    return [one for one in (*stretches, slice(start, section.numel)) if one.start < one.stop]


def _buffer(place: tuple[nn.Module, str]) -> Tensor:
    buffer = buffers_of(place[0])[place[1]]
    assert buffer is not None
    return buffer


def _dtype(section: Section) -> torch.dtype:
    assert isinstance(section.key, torch.dtype)
    return section.key
