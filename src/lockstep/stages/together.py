"""What the layers of a chain share beside the value that passes: a chain is run once and watched.

[Note: layers that stay together]
Nothing passes from stage to stage but the value that a layer returns. So there is no cut

- behind a layer whose value cannot be sent;
- behind a layer that passes views of one tensor of which a later layer changes one in place: they arrive as tensors of
  their own, and the others would not change with it;
- between a layer that makes a tensor and one that uses it without getting it, e.g. a skip that is kept in an attribute;
- between layers that use a buffer which forward changes, e.g. one BatchNorm that is called twice.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lockstep.errors import BadInput
from lockstep.stages.usage import UsageWatch, state_names, tensors_in
from lockstep.stages.values import pack, summary
from lockstep.torch_compat.tensors import version

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from lockstep.stages.layer_costs import LayerFacts

BEFORE = -1
"""In place of a layer's number: the loss function has not called the model yet."""


class ChainWatch:
    """Follows one run of a chain; notes in the layers' facts what they use, and which of them stay together."""

    def __init__(self, model: nn.Module, facts: Sequence[LayerFacts]) -> None:
        self._model, self._facts = model, facts
        self._buffers = {name: (buffer, buffer.clone()) for name, buffer in model.named_buffers()}
        self._trained = {f"parameter/{name}" for name, one in model.named_parameters() if one.requires_grad}
        self._names = state_names(model)
        self._layer = BEFORE
        self._made: dict[int, tuple[weakref.ref[Tensor], int]] = {}
        """By identity, the tensors that there are and the layer that made each."""
        self._got: set[int] = set()
        """The tensors of the value that the present layer got, by identity."""
        self._views: list[tuple[int, list[tuple[Tensor, int]]]] = []
        """Views of one tensor that a layer passed on, and how often each had been changed."""
        self.passed = ""
        """What the layer before passed on, in words."""
        self.strays: dict[tuple[int, int], str] = {}
        """Where a layer made a tensor that another one uses without getting it: why they stay together."""

    def watching(self) -> AbstractContextManager[Any]:
        """Watch what runs inside."""
        return UsageWatch(self._note_use, self._note_made)

    def begin(self, layer: int) -> None:
        """Note that a layer is called now."""
        self._layer = layer
        self._names = state_names(self._model)  # a buffer may be another tensor than it was

    def end(self, returned: Any) -> None:
        """Look at what the layer returned; after the last one the loss function goes on."""
        layer, tensors = self._layer, list(tensors_in(returned))
        for one in tensors:
            self._note_made(one)
        self._got = {id(one) for one in tensors}
        for source, views in self._views:
            if any(version(one) != before for one, before in views):
                why = (
                    f"{self._facts[source].name} passes on views of one tensor, and {self._facts[layer].name} changes "
                    "one of them in place: pass a clone()"
                )
                join(self._facts, source, source + 1, why)
        if layer == len(self._facts) - 1:
            return
        try:
            self.passed = summary(pack(returned, f"the layer {self._facts[layer].name}")[0])
        except BadInput as error:
            self.passed = f"a {type(returned).__name__}"
            join(self._facts, layer, layer + 1, str(error))
        if same := _views_of_one(tensors):
            self._views.append((layer, [(one, version(one)) for one in same]))

    def finish(self) -> None:
        """Look which buffers the run has changed."""
        for name, buffer in self._model.named_buffers():
            before, value = self._buffers.get(name, (buffer, buffer))
            if buffer is before and torch.equal(buffer, value):
                continue
            users = [number for number, one in enumerate(self._facts) if f"buffer/{name}" in one.used]
            if len(users) > 1:
                one, other = self._facts[users[0]].name, self._facts[users[-1]].name
                why = f"{one} and {other} use the buffer {name}, which forward changes: give each of them its own"
                join(self._facts, users[0], users[-1], why)

    def _note_use(self, tensor: Tensor) -> None:
        name = self._names.get(id(tensor))
        if name is not None:
            if self._layer != BEFORE:
                self._facts[self._layer].used.add(name)
                return
            if name in self._trained:
                raise BadInput(
                    f"with stages, loss(model, batch) can use a weight only after it has called model(...), and it "
                    f"uses {name.partition('/')[2]} before: put that into the model's forward, or use ddp"
                )
            for facts in self._facts:  # every stage runs the loss function up to there
                facts.used.add(name)
            return
        reference, maker = self._made.get(id(tensor), (None, BEFORE))
        stray = reference is not None and reference() is tensor and id(tensor) not in self._got
        if stray and BEFORE < maker < self._layer:
            one, other = self._facts[maker].name, self._facts[self._layer].name
            self.strays[maker, self._layer] = (
                f"{one} makes a tensor that {other}, or the loss function, uses and does not get: return it from {one} "
                "and every layer behind it, in a tuple or a dict"
            )

    def _note_made(self, tensor: Tensor) -> None:
        reference, _ = self._made.get(id(tensor), (None, BEFORE))
        if reference is None or reference() is not tensor:
            self._made[id(tensor)] = weakref.ref(tensor), self._layer


def join(facts: Sequence[LayerFacts], first: int, last: int, why: str) -> None:
    """Let layers stay together, from the first to the last."""
    for number in range(first + 1, last + 1):
        facts[number].joined = facts[number].joined or why


def _views_of_one(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return those tensors that share memory with another one of them."""
    by_memory: dict[int, dict[int, Tensor]] = {}
    for one in tensors:
        if one.layout is torch.strided and one.numel():
            by_memory.setdefault(one.untyped_storage().data_ptr(), {})[id(one)] = one
    return [one for same in by_memory.values() if len(same) > 1 for one in same.values()]
