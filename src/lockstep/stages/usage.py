"""Which parameters and buffers each layer of a chain uses: those of its modules, and those that it is seen to use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lockstep.stages.chain import Layer


class _Watch(TorchFunctionMode):
    """Notes which of some tensors torch's functions get; reading a shape or a dtype is no use."""

    def __init__(self, names: dict[int, str], note: Callable[[str], None]) -> None:
        self._names, self._note = names, note

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", "") != "__get__":
            for one in tensors_in((args, kwargs or {})):
                if id(one) in self._names:
                    self._note(self._names[id(one)])
        return func(*args, **(kwargs or {}))


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
    return _Watch(state_names(model), note)


@contextmanager
def watched(model: nn.Module) -> Iterator[set[str]]:
    """Collect the names of the parameters and buffers that are used inside."""
    used: set[str] = set()
    with watching(model, used.add):
        yield used
