"""Random numbers of a thread's own: the default generator belongs to the process, and threads would share it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lockstep.errors import BadInput


class OwnGenerator(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active in a thread, operations of that thread draw from this generator instead of the process's.

    A generator that is seeded alike gives the same numbers as the default one.
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
                    f"{func} draws random numbers and takes no generator, so threads cannot keep theirs apart: use ddp"
                )
            given["generator"] = self.generator
        return func(*args, **given)


@cache
def _draws(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


def _without_dropout(func: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> bool:
    """Say whether an operation that only draws for its dropout (attention) is called without any."""
    place = _dropout_place(func)
    if place is None:
        return False
    return bool((args[place] if place < len(args) else given.get("dropout_p", 0.0)) == 0.0)


@cache
def _dropout_place(func: Any) -> int | None:
    names = [argument.name for argument in func._schema.arguments]
    return names.index("dropout_p") if "dropout_p" in names else None


@cache
def _takes_generator(func: Any) -> bool:
    return any(argument.name == "generator" for argument in func._schema.arguments)
