"""The calls that a model's forward makes of its modules on one lane, and what it does to values between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from lockstep.torch_compat.tensors import version

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.utils.hooks import RemovableHandle


class Moment(NamedTuple):
    """A value as it was at one time: what it was made of, and how often its tensors had been changed in place."""

    leaves: tuple[Any, ...]
    versions: tuple[int | None, ...]

    @classmethod
    def of(cls, value: Any) -> Moment:
        """Look at a value now."""
        leaves = tuple(_leaves(value))
        return cls(leaves, _versions(leaves))

    def same(self, other: Moment) -> bool:
        """Say whether nothing was replaced or changed in place between the two."""
        return self.versions == other.versions and self.matches(other, is_same)

    def unchanged(self) -> bool:
        """Say whether no tensor of it was changed in place since then."""
        return self.versions == _versions(self.leaves)

    def matches(self, other: Moment, alike: Callable[[Any, Any], bool]) -> bool:
        """Say whether the two have the same form, and pairs of leaves that are alike."""
        return len(self.leaves) == len(other.leaves) and all(map(alike, self.leaves, other.leaves))


def _versions(leaves: tuple[Any, ...]) -> tuple[int | None, ...]:
    """Return how often each tensor was changed in place; those made in inference mode do not count it."""
    return tuple(version(leaf) if isinstance(leaf, Tensor) and not leaf.is_inference() else None for leaf in leaves)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield key
            yield from _leaves(one)
    elif isinstance(value, list | tuple):
        yield len(value)
        for one in value:
            yield from _leaves(one)
    else:
        yield value


def is_same(one: Any, other: Any) -> bool:
    """Say whether two leaves are one object, or the same plain value."""
    return one is other or (type(one) is type(other) and isinstance(one, int | float | str) and one == other)


class Surroundings(NamedTuple):
    """What a `with` block around a call can change of what the call computes."""

    gradients: bool
    autocast: tuple[torch.dtype, ...]
    """The dtypes that autocast is on with."""

    @classmethod
    def now(cls, devices: tuple[str, ...]) -> Surroundings:
        """Return those that hold now."""
        on = tuple(torch.get_autocast_dtype(one) for one in devices if torch.is_autocast_enabled(one))
        return cls(torch.is_grad_enabled(), on)

    def differ(self, inner: Surroundings) -> str:
        """Say which `with` block there is between here and an inner call; empty if there is none."""
        if self.gradients != inner.gradients:
            return "torch.enable_grad()" if inner.gradients else "torch.no_grad()"
        return "" if self.autocast == inner.autocast else "torch.autocast(...)"


class ModuleCall(NamedTuple):
    """One call of a module."""

    module: nn.Module
    arguments: tuple[Any, ...]
    named: dict[str, Any]
    returned: Any
    began: Moment
    """Its arguments, when it began."""
    ended: Moment
    """Its result, when it ended, as the only argument of another call."""
    around: Surroundings


def calls_of(model: nn.Module, run: Callable[[nn.Module], object]) -> list[ModuleCall]:
    """Run the model; return the calls that its forward makes of its modules in their order, and its own after them."""
    calls: list[ModuleCall] = []
    begun: list[tuple[Moment, Surroundings]] = []
    devices = tuple({"cpu"} | {parameter.device.type for parameter in model.parameters()})

    def entered(module: nn.Module, arguments: Any, named: Any) -> None:
        begun.append((Moment.of((arguments, named)), Surroundings.now(devices)))

    def left(module: nn.Module, arguments: Any, named: Any, returned: Any) -> None:
        began, around = begun.pop()
        if len(begun) == (0 if module is model else 1):
            ended = Moment.of(((returned,), {}))
            calls.append(ModuleCall(module, arguments, named, returned, began, ended, around))

    handles: list[RemovableHandle] = []
    for module in model.modules():
        handles.append(module.register_forward_pre_hook(entered, prepend=True, with_kwargs=True))
        handles.append(module.register_forward_hook(left, with_kwargs=True))
    try:
        run(model)
    finally:
        for handle in handles:
            handle.remove()
    return calls
