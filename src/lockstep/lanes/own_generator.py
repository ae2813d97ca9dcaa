"""A random number generator for each thread: the default generator is shared by all threads of the process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch

from lockstep.errors import BadInput
from lockstep.torch_compat.tensors import TorchDispatchMode, argument_names


class OwnGenerator(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active in a thread, operations of that thread draw from this generator instead of the CPU's default one.

    With the same seed both give the same numbers. What draws on a device draws from that device's own generator, which
    no other thread uses.
    """

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.generator = generator

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        needs_own = _draws(func) and given.get("generator") is None and not _without_dropout(func, args, given)
        if needs_own and not _on_device(args, given):
            if not _takes_generator(func):
                raise BadInput(
                    f"{func} draws random numbers and accepts no generator, so threads would share one: use the "
                    "strategy ddp instead of dp"
                )
            given["generator"] = self.generator
        return func(*args, **given)


def _on_device(args: tuple[Any, ...], given: Mapping[str, Any]) -> bool:
    """Return whether an operation runs on a device that is not the CPU."""
    tensors = [one.device for one in args if isinstance(one, torch.Tensor)]
    asked = given.get("device")
    devices = tensors or ([torch.device(asked)] if asked is not None else [])
    return any(device.type != "cpu" for device in devices)


@cache
def _draws(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


def _without_dropout(func: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> bool:
    """Return whether an operation that draws only for dropout (attention) is called without dropout."""
    position = _dropout_position(func)
    if position is None:
        return False
    return bool((args[position] if position < len(args) else given.get("dropout_p", 0.0)) == 0.0)


@cache
def _dropout_position(func: Any) -> int | None:
    names = argument_names(func)
    return names.index("dropout_p") if "dropout_p" in names else None


@cache
def _takes_generator(func: Any) -> bool:
    return "generator" in argument_names(func)
