"""The layers of a model in the order of their calls: what can be cut apart.

declared    Recipe(stages=lambda model: [...]): modules and small functions, called one after another; a list or an
nn.Sequential in the list is a group, which is never cut
Sequential  its children, and theirs where a child is a Sequential itself
traced      any other model: one lane is run; if each child gets just what the one before returned, it is a chain
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from torch import Tensor, nn

from lockstep.errors import BadInput
from lockstep.stages.calls import ModuleCall, calls_of
from lockstep.torch_compat.modules import children_of, has_forward_hooks, is_compiled

Declared = Callable[[nn.Module], Sequence[Any]]
"""What `Recipe(stages=...)` is."""
Example = Callable[[nn.Module], Tensor]
"""Calls the model once, as the loss function does on a lane, and returns the loss."""


CALLED_ONCE = (
    "with stages, a function of model and batch must call model(...) just once (evaluate also again, with the same "
    "arguments), and this one calls it {}: put what it does into the model's forward, or use ddp"
)


class Layer(NamedTuple):
    """One call of the chain."""

    name: str
    call: Callable[..., Any]
    modules: tuple[nn.Module, ...]
    """What it is made of, as far as that is known without running it."""


def find_layers(model: nn.Module, declared: Declared | None, example: Example | None) -> list[Layer]:
    """Return a model's layers; refuse a model that is no chain, with what to write."""
    if is_compiled(model):
        raise BadInput(
            "a compiled model cannot be cut into stages: return the plain module from Recipe(model=...), or use ddp"
        )
    if declared is not None:
        return _declared_layers(model, declared)
    if _is_sequential(model):
        return list(_flattened(model, ""))
    if example is None:
        raise BadInput(
            f"{type(model).__name__} is not an nn.Sequential: name its layers, layers=lambda model: [model.first, ...]"
        )
    return _traced_layers(model, example)


def _is_sequential(module: nn.Module) -> bool:
    """Say whether a module only calls its children one after another; hooks are part of a call, and stay with it."""
    plain = type(module).forward is nn.Sequential.forward
    return plain and len(children_of(module)) > 0 and not has_forward_hooks(module)


def _flattened(module: nn.Module, prefix: str) -> Iterator[Layer]:
    for name, child in children_of(module).items():  # not named_children, which leaves out a child that comes again
        assert child is not None, "an nn.Sequential calls every child"
        if _is_sequential(child):
            yield from _flattened(child, f"{prefix}{name}.")
        else:
            yield Layer(f"{prefix}{name}", child, (child,))


def _declared_layers(model: nn.Module, declared: Declared) -> list[Layer]:
    names = {id(module): name for name, module in model.named_modules()}
    try:
        listed = declared(model)
    except (AttributeError, TypeError, KeyError, IndexError, ValueError) as error:
        raise BadInput(f"Recipe(stages=...) raised an error: {type(error).__name__}: {error}") from error
    if not isinstance(listed, list | tuple) or not listed:
        raise BadInput(
            f"Recipe(stages=...) returned a {type(listed).__name__}, expected a list of modules and functions: return "
            "[model.first, ..., model.last]"
        )
    layers: list[Layer] = []
    for number, item in enumerate(listed):
        if isinstance(item, list | tuple):
            if not item:
                raise BadInput(f"item {number} of Recipe(stages=...) is empty, expected modules or functions in it")
            parts = [_layer(one, names, f"{number}.{inner}") for inner, one in enumerate(item)]
            label = f"{parts[0].name}...{parts[-1].name}" if len(parts) > 1 else parts[0].name
            layers.append(Layer(label, _in_turn(parts), tuple(m for part in parts for m in part.modules)))
        else:
            layers.append(_layer(item, names, str(number)))
    return layers


def _layer(item: Any, names: dict[int, str], number: str) -> Layer:
    if not callable(item):
        raise BadInput(
            f"item {number} of Recipe(stages=...) is a {type(item).__name__}, expected a module or a function"
        )
    if isinstance(item, nn.Module):
        return Layer(names.get(id(item)) or f"{type(item).__name__} {number}", item, (item,))
    label = getattr(item, "__name__", type(item).__name__)
    own = getattr(item, "__self__", None)
    modules = (own,) if isinstance(own, nn.Module) and own is not None and names.get(id(own)) else ()
    return Layer(f"function {number}" if label == "<lambda>" else label, item, modules)


def _in_turn(parts: Sequence[Layer]) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        value = parts[0].call(*arguments, **named)
        for part in parts[1:]:
            value = part.call(value)
        return value

    return call


def _traced_layers(model: nn.Module, example: Example) -> list[Layer]:
    """Run one lane, and look whether each child's only argument is what the child before it returned."""
    names = {id(module): name for name, module in model.named_modules()}
    calls = calls_of(model, example)
    times = sum(call.module is model for call in calls)
    if times != 1 or calls[-1].module is not model:
        raise BadInput(CALLED_ONCE.format(f"{times} times"))
    whole = calls.pop()
    chain = [names[id(call.module)] for call in calls]
    if not calls:
        raise BadInput(
            f"{type(model).__name__}.forward calls no child module, so there is nothing to cut: write it as layers, or "
            "use ddp"
        )
    if problem := _why_no_chain(whole, calls, chain):
        raise BadInput(_broken(model, chain, problem))
    layers: list[Layer] = []
    for call, name in zip(calls, chain, strict=True):
        nested = list(_flattened(call.module, f"{name}.")) if _is_sequential(call.module) else []
        layers += nested or [Layer(name, call.module, (call.module,))]
    return layers


def _why_no_chain(whole: ModuleCall, calls: Sequence[ModuleCall], chain: Sequence[str]) -> str:
    """Say what a forward does beside handing on from child to child; empty if that is all."""
    for call, name in zip(calls, chain, strict=True):
        if block := whole.around.differ(call.around):
            return f"{name} is called in a block `with {block}`"
    if not calls[0].began.same(whole.began):
        return f"it does not pass its own arguments to {chain[0]} as they are"
    for (before, call), (one, other) in zip(pairwise(calls), pairwise(chain), strict=True):
        if call.named or len(call.arguments) != 1 or call.arguments[0] is not before.returned:
            return f"{other} does not get just what {one} returned"
        if not call.began.same(before.ended):
            return f"what {one} returned is changed before {other} gets it"
    if whole.returned is not calls[-1].returned:
        return f"it does not return just what {chain[-1]} returned"
    if not whole.ended.same(calls[-1].ended):
        return f"what {chain[-1]} returned is changed before it is returned"
    return ""


def _as_python(name: str) -> str:
    """Return a module's name as it is typed: blocks[0].norm for blocks.0.norm."""
    return re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", name)


def _broken(model: nn.Module, chain: Sequence[str], problem: str) -> str:
    stars = {name: "*" if _is_sequential(model.get_submodule(name)) else "" for name in dict.fromkeys(chain)}
    listed = ", ".join(f"{star}model.{_as_python(name)}" for name, star in stars.items())
    return (
        f"{type(model).__name__} is no chain of layers: in its forward, {problem}. Name the layers in the recipe, with "
        f"small functions for what is between them, e.g. Recipe(stages=lambda model: [{listed}])"
    )
