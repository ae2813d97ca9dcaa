"""Blocks: which weights are fetched together, just before the module that uses them is called.

[Note: blocks of weights]
A weight may be absent whenever no module that uses it runs. So one lane is run and watched: for each use of a large
weight, which modules are being called. What all uses have in common are the modules in whose calls the weight can be
fetched: the outermost of them that is not too large is its block's. A weight that is used outside of any module below
the model itself (in its own forward, by the loss, or in two places), a small one, and one that was not seen in use,
stay with every worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from torch import nn

from lockstep.stages.usage import watching

Stack = tuple[str, ...]
"""The modules that are being called, the outermost first, by name; the model itself is left out."""

LARGE = 1 << 15
"""A weight is worth fetching from this number of elements on."""
PIECES = 8
"""A block is at most this part of all large weights, unless one module cannot be divided further."""


@dataclass(frozen=True)
class WeightBlock:
    """Weights that are fetched together."""

    module: str
    """In whose calls they are used."""
    parameters: tuple[str, ...]
    """Their names."""


def choose_blocks(sizes: Mapping[str, int], uses: Mapping[str, Sequence[Stack]]) -> list[WeightBlock]:
    """Return the blocks of weights (elements by name) that were seen in use; see [Note: blocks of weights]."""
    common = {name: _common(uses[name]) for name, size in sizes.items() if size >= LARGE and uses.get(name)}
    inside: dict[str, int] = {}
    for name, stack in common.items():
        for module in set(stack):
            inside[module] = inside.get(module, 0) + sizes[name]
    most = sum(sizes[name] for name in common) // PIECES
    members: dict[str, list[str]] = {}
    for name, stack in common.items():
        if stack:
            module = next((one for one in stack if inside[one] <= most), stack[-1])
            members.setdefault(module, []).append(name)
    return [WeightBlock(module, tuple(names)) for module, names in members.items()]


def _common(stacks: Sequence[Stack]) -> Stack:
    """Return what stacks begin with."""
    columns = takewhile(lambda column: len(set(column)) == 1, zip(*stacks, strict=False))
    return tuple(column[0] for column in columns)


def uses_of_weights(model: nn.Module, run: Callable[[], Any]) -> dict[str, list[Stack]]:
    """Call a function that uses the model; return in which modules' calls each parameter was used."""
    uses: dict[str, list[Stack]] = {}
    with _following(model) as calls:

        def note(name: str) -> None:
            kind, _, parameter = name.partition("/")
            if kind == "parameter":
                uses.setdefault(parameter, []).append(tuple(calls))

        with watching(model, note):
            run()
    return uses


@contextmanager
def _following(model: nn.Module) -> Iterator[list[str]]:
    """Keep a list of the modules that are being called."""
    calls: list[str] = []
    handles = []
    for name, module in model.named_modules():
        if name:

            def enter(_module: nn.Module, _arguments: Any, name: str = name) -> None:
                calls.append(name)

            def leave(_module: nn.Module, _arguments: Any, _output: Any) -> None:
                calls.pop()

            handles += [
                module.register_forward_pre_hook(enter),
                module.register_forward_hook(leave, always_call=True),
            ]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()
