"""Which parameters and buffers each layer of a chain uses: those of its modules, and those that it is seen to use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lockstep.stages.chain import Layer


class _Watch(TorchFunctionMode):
    """Notes which of some tensors torch's functions get; reading a shape or a dtype is no use."""

    def __init__(self, names: dict[int, str]) -> None:
        self._names = names
        self.used: set[str] = set()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", "") != "__get__":
            self.used.update(self._names[id(one)] for one in _tensors((args, kwargs or {})) if id(one) in self._names)
        return func(*args, **(kwargs or {}))


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _tensors(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)


def state_names(model: nn.Module) -> dict[int, str]:
    """Return the names of a model's parameters and buffers, by identity; a shared one has its first name."""
    names = {id(parameter): f"parameter/{name}" for name, parameter in model.named_parameters()}
    return names | {id(buffer): f"buffer/{name}" for name, buffer in model.named_buffers()}


def contained(model: nn.Module, layers: Sequence[Layer]) -> list[set[str]]:
    """Return what the modules of each layer contain."""
    names = state_names(model)
    return [
        {
            names[id(tensor)]
            for module in layer.modules
            for tensor in (*module.parameters(), *module.buffers())
            if id(tensor) in names
        }
        for layer in layers
    ]


@contextmanager
def watched(model: nn.Module) -> Iterator[set[str]]:
    """Collect the names of the parameters and buffers that are used inside."""
    watch = _Watch(state_names(model))
    with watch:
        yield watch.used
