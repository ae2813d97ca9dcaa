"""Registry: descriptions by name, those of Lockstep first, then those that other packages add by entry points."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, Self, TypeVar

from lockstep.errors import BadInput, nearest


def usable() -> None:
    """Find nothing that keeps it from being used here."""


@dataclass(frozen=True, kw_only=True)
class Description:
    """What is known of a thing that can be chosen by name, before any of its code is imported."""

    name: str
    """As typed and as shown; its entry point has the same name."""
    help: str
    """What it is, in one line, without a full stop at the end."""
    unavailable: Callable[[], str | None] = usable
    """Return why it cannot be used on this machine and what to do about it, or None. Quick; imports no torch."""

    @classmethod
    def broken(cls, name: str, reason: str) -> Self:
        """Return the description of something that cannot be loaded: all that it says is why."""
        values: dict[str, Any] = {field.name: "" for field in fields(cls) if field.default is MISSING}
        return cls(**{**values, "name": name, "help": "cannot be loaded", "unavailable": lambda: reason})


Described = TypeVar("Described", bound=Description)


class Registry(Generic[Described]):
    """The descriptions of one kind.

    Built-in modules are imported, and entry points are looked up, when a name is first asked for; an entry point is
    loaded only when its own name is. One that cannot be loaded is described as such: it shows up as a row with its
    reason, and no other name is touched by it.
    """

    def __init__(
        self,
        kind: str,
        accepts: type[Described],
        *,
        value: str,
        modules: Sequence[str],
        group: str | None = None,
        beside: Registry[Any] | None = None,
    ) -> None:
        self.kind = kind
        self._accepts = accepts
        self._value = value
        self._modules = tuple(modules)
        self._group = group
        self._beside = beside
        self._loaded: dict[str, Described] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._built_in or name in self._outside

    def names(self) -> list[str]:
        """Return every name, the built-in ones first; loads no entry point."""
        return [*self._built_in, *self._outside]

    def all(self) -> list[Described]:
        """Return every description, in the order of `names`."""
        return [self.get(name) for name in self.names()]

    def get(self, name: str) -> Described:
        """Return the description of that name; refuse an unknown name, with the nearest one that there is."""
        if name in self._built_in:
            return self._built_in[name]
        if name not in self._outside:
            raise BadInput(f"no {self.kind} called {name!r}{nearest(name, self.names())}")
        if name not in self._loaded:
            self._loaded[name] = self._load(name, self._outside[name])
        return self._loaded[name]

    def refused(self) -> list[str]:
        """Return a sentence for each entry point whose name is taken by something else."""
        return [
            f"{self.kind} {point.name!r} of {origin(point)} is not used: {self._holder(point.name)} has that name; "
            "give it another one"
            for point in self._points
            if self._holder(point.name)
        ]

    @cached_property
    def _built_in(self) -> dict[str, Described]:
        values = [getattr(importlib.import_module(module), self._value) for module in self._modules]
        return {value.name: value for value in values}

    @cached_property
    def _points(self) -> list[EntryPoint]:
        return sorted(entry_points(group=self._group), key=lambda point: point.name) if self._group else []

    @cached_property
    def _outside(self) -> dict[str, list[EntryPoint]]:
        named: dict[str, list[EntryPoint]] = {}
        for point in self._points:
            if not self._holder(point.name):
                named.setdefault(point.name, []).append(point)
        return named

    def _holder(self, name: str) -> str:
        """Say who had a name before any entry point of this registry; empty if nobody."""
        if name in self._built_in:
            return f"a built-in {self.kind}"
        return f"a {self._beside.kind}" if self._beside is not None and name in self._beside else ""

    def _load(self, name: str, points: Sequence[EntryPoint]) -> Described:
        if len(points) > 1:
            both = " and by ".join(origin(point) for point in points)
            return self._broken(name, f"is given twice, by {both}: uninstall all but one of them")
        where = origin(points[0])
        try:
            value = points[0].load()
        except (Exception, SystemExit) as error:
            reason = f"of {where} cannot be loaded ({type(error).__name__}: {error}): repair or uninstall that package"
            return self._broken(name, reason)
        if not isinstance(value, self._accepts):
            kinds = f"{type(value).__name__}, not {self._accepts.__name__}"
            return self._broken(name, f"of {where} is of type {kinds}: repair or uninstall that package")
        if value.name != name:
            reason = f"of {where} calls itself {value.name!r}: its entry point must have that name"
            return self._broken(name, reason)
        return value

    def _broken(self, name: str, reason: str) -> Described:
        return self._accepts.broken(name, f"{self.kind} {name!r} {reason}")


def origin(point: EntryPoint) -> str:
    """Name the package and the object that an entry point stands for."""
    package = f"package {point.dist.name} {point.dist.version}" if point.dist is not None else "an unnamed package"
    return f"{package} ({point.value})"


def import_object(path: str) -> Any:
    """Import `module:Name`."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
