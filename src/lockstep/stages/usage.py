"""Which parameters and buffers each layer of a chain uses: those of its modules, and those that it is seen to use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lockstep.stages.chain import Layer


class UsageWatch(TorchFunctionMode):
    """Calls functions with the tensors that torch's functions get and return; reading a shape or a dtype is no use."""

    def __init__(self, got: Callable[[Tensor], None], returned: Callable[[Tensor], None] | None = None) -> None:
        self._got, self._returned = got, returned

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") != "__get__" or isinstance(result, Tensor):  # weight.T is a use of a weight
            for one in tensors_in((args, kwargs or {})):
                self._got(one)
        if self._returned is not None:
            for one in tensors_in(result):
                self._returned(one)
        return result


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of a value, also those in its lists, tuples and mappings."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from tensors_in(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from tensors_in(one)


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


def watching(model: nn.Module, note: Callable[[str], None]) -> AbstractContextManager[Any]:
    """Call a function with the name of each parameter and buffer that is used inside, every time that it is."""
    names = state_names(model)

    def got(tensor: Tensor) -> None:
        if id(tensor) in names:
            note(names[id(tensor)])

    return UsageWatch(got)
