"""Which variable cannot be sent to the workers: the smallest part of a value that cannot be pickled, by name."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

from lockstep.notebook.payload import CELLS, CellPickler

DEEPEST = 12
"""How far the search goes."""


def blame(value: Any, name: str) -> str:
    """Return one sentence on what in a value cannot be pickled and what to do; `name` is what the user calls it."""
    path, culprit = [f"`{name}`"], value
    seen: set[int] = set()
    while len(path) < DEEPEST and id(culprit) not in seen:
        seen.add(id(culprit))
        part = next(((how, part) for how, part in _parts(culprit) if _cannot(part)), None)
        if part is None:
            break
        path.append(part[0])
        culprit = part[1]
    module = type(culprit).__module__
    kind = type(culprit).__qualname__ if module in ("builtins", CELLS) else f"{module}.{type(culprit).__qualname__}"
    chain = ", ".join(reversed(path[1:]))
    where = f"{chain} of {path[0]}, a {kind}," if chain else f"{path[0]}, a {kind},"
    return (
        f"{where} cannot be sent to the workers: {_cannot(culprit)}. Make it inside the function that uses it, or "
        "leave it out"
    )


def _cannot(value: Any) -> str:
    """Say why a value cannot be pickled; empty if it can."""
    try:
        CellPickler(io.BytesIO()).dump(value)
    except Exception as error:
        return str(error) or type(error).__name__
    return ""


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a value holds, each with what a reader calls it."""
    if isinstance(value, FunctionType):
        yield from _variables(value)
    elif isinstance(value, type):
        yield from ((f"attribute `{name}`", part) for name, part in vars(value).items() if not name.startswith("__"))
        yield from ((f"method `{name}`", part) for name, part in vars(value).items() if isinstance(part, FunctionType))
    elif isinstance(value, Mapping):
        yield from ((f"entry {key!r:.40}", part) for key, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"element {place}", part) for place, part in enumerate(value))
    elif is_dataclass(value):
        yield from ((f"field `{field.name}`", getattr(value, field.name, None)) for field in fields(value))
    elif not isinstance(value, ModuleType):
        if hasattr(value, "__self__") and hasattr(value, "__func__"):
            yield "the object of the method", value.__self__
        if hasattr(value, "func") and hasattr(value, "keywords"):  # functools.partial
            yield from (("function", value.func), ("arguments", value.args), ("keywords", value.keywords))
        yield from ((f"attribute `{name}`", part) for name, part in getattr(value, "__dict__", {}).items())
        yield "its class", type(value)


def _variables(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the variables that a function uses: those of functions around it, global ones, and its defaults."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"variable `{name}`", cell.cell_contents
        except ValueError:  # not set yet
            continue
    names = names_in(function.__code__)
    yield from ((f"variable `{name}`", part) for name, part in function.__globals__.items() if name in names)
    yield from ((f"default {place}", part) for place, part in enumerate(function.__defaults__ or ()))


def names_in(code: CodeType) -> set[str]:
    """Return every name that a function, or one inside it, looks up."""
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*map(names_in, inner))
