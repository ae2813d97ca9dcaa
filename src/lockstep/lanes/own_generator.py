"""A random number generator for each thread: the default generator is shared by all threads of the process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch

from lockstep.errors import BadInput
from lockstep.torch_compat.tensors import TorchDispatchMode, argument_names


class OwnGenerator(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active in a thread, operations of that thread draw from this generator instead of the default one.

    With the same seed both give the same numbers.
    """

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.generator = generator

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if _draws(func) and given.get("generator") is None and not _without_dropout(func, args, given):
            if not _takes_generator(func):
                raise BadInput(
                    f"{func} draws random numbers and accepts no generator, so threads would share one: use the "
                    "strategy ddp instead of dp"
                )
            given["generator"] = self.generator
        return func(*args, **given)


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
