"""A model on flat buffers: weights are views of one buffer, gradients are added into others, lane by lane.

[Note: large and small gradients]
A hook folds a large gradient (copies or adds it into its buffer) as soon as it exists. For a small one the call of a
hook takes longer than the addition: backward itself adds it to `.grad`, which is a view of its buffer. No small
gradient is kept for later: small tensors that stay between large ones make the heap grow and shrink in every step,
which costs more than all of this.

[Note: gradients in pieces]
A re-entrant checkpoint produces a gradient in pieces. They must add up to the lane's gradient before other lanes are
added; in a buffer that is still empty, or while the gradient waits, they may be added one by one. So a gradient is
folded at once only if it is the first of its buffer, or if it came whole in an earlier lane. Until then every parameter
has a hook, and nothing is said to be complete.

[Note: pairs]
Of two lanes whose gradients are added to each other, the large gradients of the first wait where backward created them,
and are added to those of the second in one pass, see merging.py. That needs memory for one set of them, so it is not
done on accelerators. As where torch itself accumulates, no other code may write to a gradient after its hook has run.
Where no other worker reads the sums they need no place of their own at all, see kept_sums.py.

[Note: whole vectors]
A fused optimizer updates the last elements of a tensor, those that fill no vector of the processor, by other
instructions, whose rounding differs. So what a worker updates must begin and end between vectors, whoever updates it:
slices do (flat_layout.py), and a kept sum whose tensor does not is folded as if it were small.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lockstep.errors import BadInput
from lockstep.lanes.flat_layout import Section, lay_out
from lockstep.lanes.tree import Fold
from lockstep.strategies.flat_buffers import FlatBuffers
from lockstep.strategies.kept_sums import Finish, KeptSums
from lockstep.strategies.merging import Merger

LARGE = 1 << 15
"""A gradient is large from this number of elements on."""
VECTOR = 64
"""What is updated by itself must be a multiple of this, see [Note: whole vectors]."""


class ModelLayout:
    """Where a model's trained parameters lie in flat tensors, and its buffers."""

    def __init__(self, model: nn.Module, keys: Sequence[tuple[Any, ...]], workers: int) -> None:
        """`keys`: parameters with the same key and dtype share a section; the first of a key is its optimizer group."""
        self.model = model
        self.names = [name for name, p in model.named_parameters() if p.requires_grad]
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        shapes = [tuple(p.shape) for p in self.parameters]
        section_keys = [(key[0], p.dtype, *key[1:]) for key, p in zip(keys, self.parameters, strict=True)]
        self.sections: list[Section] = lay_out(shapes, section_keys, workers) if shapes else []
        self.buffers = FlatBuffers(model, workers)


class Total(NamedTuple):
    """The sum over all lanes of a stretch of a section."""

    start: int
    values: Tensor
    """Flat."""
    finished: bool
    """Whether `finish_sums` was done to it."""


class FlatModel(ModelLayout):
    """Makes a model's parameters and float buffers views of flat tensors, and collects its gradients.

    A lane:  1. `buffers.restore`  buffers return to the step's first values
             2. forward
             3. `begin`            gradients will go to the buffer of a fold
             4. backward; each gradient is copied or added into its buffer, see also merging.py
             5. `end`              a missing gradient counts as zero
             6. `buffers.collect`  the float buffers are ready to be folded like the gradients
    """

    def __init__(
        self,
        model: nn.Module,
        keys: Sequence[tuple[Any, ...]],
        workers: int,
        *,
        part: bool = False,
        keep: bool = False,
        large: int = LARGE,
    ) -> None:
        """`part`: of a model that is cut, a part may have nothing to train. `keep`: no other worker reads the sums.

        `large`: from how many elements on a gradient is large.
        """
        super().__init__(model, keys, workers)
        if not self.parameters and not part:
            raise BadInput(
                "the model has no parameter that requires a gradient, so there is nothing to train: set requires_grad"
            )
        self._sums: Sequence[Sequence[Tensor]] = []
        """The buffers of a fold, each with one flat tensor per section."""
        self._targets: list[Tensor] = []
        self._above: list[list[Tensor]] = []
        """The sums to which the sum of large gradients is added in turn, each as one view per parameter."""
        self._merger = Merger()
        self._kept = KeptSums() if keep else None
        self._waiting: dict[int, Tensor] = {}
        """Large gradients of the lane before, see [Note: pairs]."""
        self._views: dict[int, list[Tensor]] = {}
        self._fold = Fold(0, True, ())
        whole = VECTOR if keep else 1
        self._large = {i for i, p in enumerate(self.parameters) if p.numel() >= large and p.numel() % whole == 0}
        self._numbers = {id(parameter): index for index, parameter in enumerate(self.parameters)}
        # Gaps between large tensors stay zero, and may be on their way to another worker: nobody touches them.
        self._small = [
            [] if all(slot.index in self._large for slot in section.slots) else _without(section, self._large)
            for section in self.sections
        ]
        self.stretches = [_stretches(section, self._large) for section in self.sections]
        """The parts of each section whose sums lie in one piece, if they are kept: see `sums`."""
        self._fired: Counter[int] = Counter()
        self._whole: set[int] = set()
        """The parameters whose gradient came in one piece in an earlier lane."""
        self._hooks = {
            index: parameter.register_post_accumulate_grad_hook(self._catcher(index))  # type: ignore[no-untyped-call]
            for index, parameter in enumerate(self.parameters)
        }
        self._in_place: list[int] = []
        """The parameters without a hook."""
        self.complete: Callable[[int], None] | None = None
        """Called with a large parameter once its gradient is in its sum for good, see [Note: gradients in pieces]."""

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
        views_by_index: list[Tensor] = [torch.empty(0)] * len(self.parameters)
        for section, flat in zip(self.sections, flats, strict=True):
            for slot in section.slots:
                views_by_index[slot.index] = flat[slot.start : slot.stop].view(slot.shape)
        return views_by_index

    def sums(self, section: int, flat: Tensor) -> list[Total]:
        """Return the sums over all lanes of a section's stretches; what is kept is then the caller's."""
        large = {slot.start: slot.index for slot in self.sections[section].slots if slot.index in self._large}
        totals = []
        for stretch in self.stretches[section]:
            kept, done = None, False
            if self._kept and stretch.start in large:
                kept, done = self._kept.take(large[stretch.start])
            values = flat[stretch.start : stretch.stop] if kept is None else kept.view(-1)
            totals.append(Total(stretch.start, values, done))
        return totals

    def finish_sums(self, finish: Finish | None) -> None:
        """Let this complete the large sums of the next lane, as far as they are kept; None: they are only added up."""
        if self._kept:
            self._kept.finish = finish

    def begin(self, fold: Fold, buffers: Sequence[Sequence[Tensor]]) -> None:
        """Start a lane's backward: gradients go to buffer `fold.buffer`, or directly to the sums that they complete."""
        self._sums, self._fold = buffers, fold
        target = buffers[fold.buffer]
        self._targets = self._views_of(target)
        self._above = [self._views_of(buffers[left]) for left, _ in fold.merges]
        self._fired.clear()
        if self._kept:
            self._kept.begin(fold)
        if fold.fresh:
            self._waiting.clear()
            for index in self._hooks:
                self.parameters[index].grad = None  # left by a step that failed
            for flat, parts in zip(target, self._small, strict=True):
                for part in parts:
                    flat[part].zero_()
        for index in self._in_place:
            self.parameters[index].grad = self._targets[index]

    def _views_of(self, flats: Sequence[Tensor]) -> list[Tensor]:
        """Return the views of flat tensors, made once."""
        key = flats[0].data_ptr() if flats else 0
        if key not in self._views:
            self._views[key] = self.views(flats)
        return self._views[key]

    def end(self) -> None:
        """Finish a lane's backward: a parameter without a gradient adds zero, and small sums are merged."""
        for index in self._in_place:
            self.parameters[index].grad = None
        for index in list(self._hooks):
            parameter, fired = self.parameters[index], self._fired[index]
            if parameter.grad is not None:
                self._put(index, parameter.grad)
                parameter.grad = None
            elif not fired and index in self._large:
                self._put_zero(index)
            elif self._fold.fresh and fired == 1 and index not in self._whole:
                self._note_whole(index)
        for left, right in self._fold.merges:
            for one, other, parts in zip(self._sums[left], self._sums[right], self._small, strict=True):
                for part in parts:
                    one[part].add_(other[part])

    @property
    def one_by_one(self) -> bool:
        """Whether `begin_some` may be used: sums are kept here, and every gradient is known to come in one piece."""
        return self._kept is not None and len(self._in_place) + len(self._large & self._whole) == len(self.parameters)

    def begin_some(self, weights: Sequence[Tensor], fold: Fold, buffers: Sequence[Sequence[Tensor]]) -> None:
        """Start a lane's backward for some parameters alone, whatever lane the others are in."""
        assert self._kept is not None
        self._fold = fold
        self._fired.clear()
        for index in (self._numbers[id(weight)] for weight in weights):
            if index in self._large:
                self._kept.begin_one(index, fold)
                continue
            target = self._views_of(buffers[fold.buffer])[index]
            if fold.fresh:
                target.zero_()
            self.parameters[index].grad = target

    def end_some(self, weights: Sequence[Tensor], buffers: Sequence[Sequence[Tensor]]) -> None:
        """Finish what `begin_some` started."""
        for index in (self._numbers[id(weight)] for weight in weights):
            if index in self._large:
                if not self._fired[index]:
                    self._put_zero(index)
                continue
            self.parameters[index].grad = None
            for left, right in self._fold.merges:
                self._views_of(buffers[left])[index].add_(self._views_of(buffers[right])[index])

    def _note_whole(self, index: int) -> None:
        self._whole.add(index)
        if index not in self._large:
            self._hooks.pop(index).remove()
            self._in_place.append(index)

    def _catcher(self, index: int) -> Callable[[Tensor], None]:
        def catch(parameter: Tensor) -> None:
            gradient = parameter.grad
            assert gradient is not None
            if not self._fold.fresh and index not in self._whole:
                return  # all pieces add up in `.grad`, and `end` takes their sum
            # Freed as soon as it is folded; and backward then sets the next gradient instead of adding to it.
            parameter.grad = None
            self._fired[index] += 1
            if self._fired[index] == 1:
                self._put(index, gradient)
                if self.complete is not None and index in self._whole and index in self._large:
                    self.complete(index)
            elif self._fold.fresh and (self.complete is None or index not in self._whole):
                self._add_piece(index, gradient)
                self._whole.discard(index)
            else:
                raise BadInput(
                    f"{self.names[index]} got its gradient in several pieces, but in one piece before: pass "
                    "use_reentrant=False to torch.utils.checkpoint in the model"
                )

        return catch

    def _put(self, index: int, gradient: Tensor) -> None:
        if gradient.is_sparse:
            raise BadInput(f"{self.names[index]} has a sparse gradient: use sparse=False in its embedding")
        if index not in self._large:
            self._targets[index].add_(gradient)
        elif self._kept:
            self._kept.put(index, gradient, self._fold)
        elif self._fold.waits and gradient.is_cpu:
            self._waiting[index] = gradient
        elif self._fold.fresh:
            self._targets[index].copy_(gradient)
        else:
            self._complete(index, gradient)

    def _put_zero(self, index: int) -> None:
        if self._kept:
            self._kept.put(index, None, self._fold)
        elif self._fold.fresh:
            self._targets[index].zero_()
        else:
            self._complete(index, None)

    def _add_piece(self, index: int, gradient: Tensor) -> None:
        if self._kept and index in self._large:
            self._kept.add_piece(index, gradient, self._fold)
        elif index in self._waiting:  # not in place: it may share its memory with another gradient
            self._waiting[index] = self._waiting[index] + gradient
        else:
            self._targets[index].add_(gradient)

    def _complete(self, index: int, gradient: Tensor | None) -> None:
        """Add a large gradient, if there is one, to the one that waits or is in its buffer; that to the sums above."""
        first = self._waiting.pop(index, self._targets[index])
        terms = [first, *([] if gradient is None else [gradient]), *(sums[index] for sums in self._above)]
        self._merger.add_up(terms, out=terms[-1] if self._above else self._targets[index])


def _without(section: Section, indices: set[int]) -> list[slice]:
    """Return the parts of a section without these tensors."""
    parts, start = [], 0
    for slot in section.slots:
        if slot.index in indices:
            parts.append(slice(start, slot.start))
            start = slot.stop
    return [one for one in (*parts, slice(start, section.numel)) if one.start < one.stop]


def _stretches(section: Section, indices: set[int]) -> list[range]:
    """Return these tensors of a section and what lies between them, in order."""
    alone = [range(slot.start, slot.stop) for slot in section.slots if slot.index in indices]
    between = [range(part.start, part.stop) for part in _without(section, indices)]
    return sorted([*alone, *between], key=lambda one: one.start)
