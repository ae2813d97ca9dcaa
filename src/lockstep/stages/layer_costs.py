"""What each layer of a chain takes for one lane, and which tensors it uses: run in this process, on a real lane."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lockstep.errors import BadInput
from lockstep.lanes.rng import random_state, set_random_state
from lockstep.stages.chain import Layer
from lockstep.stages.cuts import Cost
from lockstep.stages.stage_model import CutModel
from lockstep.stages.together import ChainWatch, join
from lockstep.stages.usage import contained, tensors_in
from lockstep.torch_compat.graph import backward_from

RUNS = 3
"""Lanes that are timed; the fastest counts, after one to warm up."""


@dataclass
class LayerFacts:
    """What is known of one layer."""

    name: str
    used: set[str] = field(default_factory=set)
    """Its parameters and buffers."""
    parameters: int = 0
    """How many elements they have."""
    weights: int = 0
    """Their bytes."""
    forward: float = 0.0
    """Seconds."""
    backward: float = 0.0
    passes: int = 0
    """Bytes that it hands on."""
    keeps: int = 0
    """Bytes that it keeps of a lane for backward; what the layer before keeps anyway is not counted again."""
    joined: str = ""
    """Why it cannot be cut from the layer before it, see [Note: layers that stay together]; empty if it can."""

    def cost(self, copies: float) -> Cost:
        """Return what a cut weighs, if so many bytes are held for each byte of a weight."""
        return Cost(self.forward + self.backward, copies * self.weights, self.keeps, joined=bool(self.joined))


Around = Callable[[int, Callable[[], Any]], Any]
"""Calls a layer, given by its number, and returns what the next one gets."""


class ChainRun(CutModel):
    """The chain as a model, with something around each of its layers."""

    def __init__(self, whole: nn.Module, layers: Sequence[Layer], around: Around) -> None:
        super().__init__(whole)
        self._run = (tuple(layers), around)

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """Run the chain."""
        self.count_call()
        layers, around = self._run
        value = around(0, partial(layers[0].call, *arguments, **named))
        for number, layer in enumerate(layers[1:], 1):
            value = around(number, partial(layer.call, value))
        return value


def use_of_layers(
    model: nn.Module, layers: Sequence[Layer], example: Callable[[nn.Module], object] | None
) -> list[LayerFacts]:
    """Return each layer's tensors: those of its modules, and what it is seen to use on an example."""
    facts = [LayerFacts(layer.name, set(used)) for layer, used in zip(layers, contained(model, layers), strict=True)]
    if example is not None:
        strays = _watch(model, layers, facts, example)
        if strays:  # a tensor that is made only once, and kept for all lanes, is none
            for (first, last), why in _watch(model, layers, facts, example).items():
                join(facts, first, last, why)
    parameters = {f"parameter/{name}": parameter for name, parameter in model.named_parameters()}
    for one in facts:
        own = [parameters[name] for name in one.used if name in parameters]
        one.parameters = sum(parameter.numel() for parameter in own)
        one.weights = sum(parameter.numel() * parameter.element_size() for parameter in own)
    return facts


def _watch(
    model: nn.Module, layers: Sequence[Layer], facts: Sequence[LayerFacts], example: Callable[[nn.Module], object]
) -> dict[tuple[int, int], str]:
    """Run the chain; note what the layers use, and return where a tensor goes a way of its own."""
    watch = ChainWatch(model, facts)

    def look(number: int, call: Callable[[], Any]) -> Any:
        watch.begin(number)
        returned = _checked(facts, number, call, watch.passed)
        watch.end(returned)
        return returned

    with untouched(model), torch.no_grad():
        with watch.watching():
            ChainRun(model, layers, look).give_to(example)
        watch.finish()
    return watch.strays


def _checked(facts: Sequence[LayerFacts], number: int, call: Callable[[], Any], passed: str) -> Any:
    """Call a layer; if it fails, name it and the one whose result it got."""
    try:
        return call()
    except (TypeError, RuntimeError, ValueError, IndexError, AttributeError) as error:
        if not passed:
            raise
        raise BadInput(
            f"the layer {facts[number].name} cannot take what {facts[number - 1].name} passes to it ({passed}): "
            f"{type(error).__name__}: {error}"
        ) from error


def measure_layers(
    model: nn.Module,
    layers: Sequence[Layer],
    facts: Sequence[LayerFacts],
    example: Callable[[nn.Module], Tensor],
    runs: int = RUNS,
) -> None:
    """Time each layer forward and backward on an example, and note what it passes on and keeps.

    With no runs it is not timed. Weights' gradients are freed as soon as they exist: they are not needed.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    held = {_storage(parameter) for parameter in model.parameters()}
    hooks = [one.register_post_accumulate_grad_hook(_drop_gradient) for one in trained]  # type: ignore[no-untyped-call]
    try:
        with untouched(model):
            for run in range(runs + 1):
                times = _timed(model, layers, facts, example, held)
                for one, (forward, backward) in zip(facts, times, strict=True):
                    if run == 1 or (run > 1 and forward + backward < one.forward + one.backward):
                        one.forward, one.backward = forward, backward
    finally:
        for hook in hooks:
            hook.remove()


def _drop_gradient(parameter: Tensor) -> None:
    parameter.grad = None


class _Saved:
    """What autograd saves while a layer runs, by storage; what is held anyway, the parameters, is not counted."""

    def __init__(self, held: Set[int]) -> None:
        self._held = held
        self.bytes: dict[int, int] = {}

    def watch(self) -> AbstractContextManager[None]:
        """Note what is saved inside."""
        return torch.autograd.graph.saved_tensors_hooks(self._note, lambda tensor: tensor)

    def _note(self, tensor: Tensor) -> Tensor:
        if _storage(tensor) not in self._held:
            self.bytes[_storage(tensor)] = tensor.untyped_storage().nbytes()
        return tensor

    def without(self, storages: Set[int]) -> int:
        """Return how many bytes were saved, but for these storages."""
        return sum(size for storage, size in self.bytes.items() if storage not in storages)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _timed(
    model: nn.Module,
    layers: Sequence[Layer],
    facts: Sequence[LayerFacts],
    example: Callable[[nn.Module], Tensor],
    held: Set[int],
) -> list[tuple[float, float]]:
    """Run one lane with a cut between any two layers, so that each one's backward can be timed."""
    inputs: list[list[Tensor]] = []
    outputs: list[list[Tensor]] = []
    forward: list[float] = []
    kept_before: set[int] = set()
    """Storages of the layer's input that the layer before keeps itself."""

    def apart(number: int, call: Callable[[], Any]) -> Any:
        saved = _Saved(held)
        began = time.perf_counter()
        with saved.watch():
            returned = call()
        forward.append(time.perf_counter() - began)
        tensors = list({id(one): one for one in tensors_in(returned)}.values())
        facts[number].keeps = saved.without(kept_before)
        facts[number].passes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        outputs.append([one for one in tensors if one.requires_grad])
        kept = {id(one) for one in tensors if _storage(one) in saved.bytes}
        kept_before.clear()
        if number == len(layers) - 1:
            kept_before.update(_storage(one) for one in tensors if id(one) in kept)
            return returned
        if facts[number + 1].joined:  # its backward is part of the next layer's
            kept_before.update(_storage(one) for one in tensors if id(one) in kept)
            outputs[-1] = []
            inputs.append([])
            return returned
        leaves = {id(one): one.detach().requires_grad_() for one in outputs[-1]}
        inputs.append(list(leaves.values()))
        passed = {key: leaf.view_as(leaf).clone() for key, leaf in leaves.items()}
        kept_before.update(_storage(passed[key]) for key in passed if key in kept)
        return _replaced(returned, passed)

    by_loss = _Saved(held)
    with by_loss.watch():
        total = ChainRun(model, layers, apart).give_to(example)
    facts[-1].keeps += by_loss.without(kept_before)
    backward = [0.0] * len(layers)
    began = time.perf_counter()
    torch.autograd.backward(total)
    backward[-1] = time.perf_counter() - began
    for number in range(len(layers) - 2, -1, -1):
        both = [(o, i.grad) for o, i in zip(outputs[number], inputs[number], strict=True) if i.grad is not None]
        began = time.perf_counter()
        if both:
            backward_from([one for one, _ in both], [gradient for _, gradient in both])
        backward[number] = time.perf_counter() - began
    return list(zip(forward, backward, strict=True))


def _replaced(value: Any, passed: dict[int, Tensor]) -> Any:
    """Return a value with copies of the cut's leaves in place of its tensors; layers may change them in place."""
    if isinstance(value, Tensor):
        return passed.get(id(value), value)
    if isinstance(value, dict):
        return {key: _replaced(one, passed) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_replaced(one, passed) for one in value)
    return value


class untouched:  # noqa: N801 - a context manager, named as what it gives
    """Leave a model's buffers, the random stream, and no gradients, as they were."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def __enter__(self) -> None:
        self._buffers = {name: buffer.clone() for name, buffer in self._model.named_buffers()}
        device = next(self._model.parameters(), torch.empty(0)).device
        self._device = str(device)
        self._random = random_state(self._device)

    def __exit__(self, *_: object) -> None:
        for name, buffer in self._model.named_buffers():
            buffer.data.copy_(self._buffers[name])
        set_random_state(self._random, self._device)
        self._model.zero_grad(set_to_none=True)
