"""torch's compiler, imported when something compiles and not before.

[Note: late compiler]
torch.optim imports the compiler at its first use, only to be left out of what is compiled: as long as nothing is,
`disable` and `graph_break` do nothing. But the import takes nearly as long as that of torch itself, and 70 MB. So a
module that does just that stands in its place until anything else is asked of it (torch.compile, torch's own DDP, an
activation checkpoint): then the real one is imported, and takes over. What `disable` was asked before that is left out
of what is compiled after it as well.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

from lockstep.torch_compat.startup import COMPILER


class LateCompiler(ModuleType):
    """Stands where torch's compiler will be."""

    def __init__(self, file: str | None) -> None:
        super().__init__(COMPILER, __doc__)
        self.__file__ = file
        self.trace_rules = SimpleNamespace(clear_lru_cache=lambda: None)  # a new group clears it, if it is there

    @staticmethod
    def graph_break(*_: Any, **__: Any) -> None:
        """Do nothing: no graph is being made."""

    @staticmethod
    def disable(function: Any = None, *arguments: Any, **options: Any) -> Any:
        """Return a function that calls the given one; once there is a compiler, the one that it made of it."""
        made: list[Callable[..., Any]] = []

        def call(*own: Any, **named: Any) -> Any:
            if not made and not isinstance(sys.modules.get(COMPILER), LateCompiler):
                made.append(importlib.import_module(COMPILER).disable(function, *arguments, **options))
            return (made[0] if made else function)(*own, **named)

        return call

    def __getattr__(self, name: str) -> Any:
        """Import the compiler, and answer as it does; not for names that tools ask every module for."""
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        return getattr(self.make_way(), name)

    def make_way(self) -> ModuleType:
        """Import the compiler."""
        if sys.modules.get(COMPILER) is self:
            del sys.modules[COMPILER]
        package, _, own = COMPILER.rpartition(".")
        if vars(sys.modules[package]).get(own) is self:
            delattr(sys.modules[package], own)
        return importlib.import_module(COMPILER)


def stand_in() -> bool:
    """Have torch import its compiler when something compiles; False if it is there already."""
    if COMPILER in sys.modules:
        return isinstance(sys.modules[COMPILER], LateCompiler)
    package, _, own = COMPILER.rpartition(".")
    importlib.import_module(package)
    found_at = importlib.util.find_spec(COMPILER)
    late = LateCompiler(found_at.origin if found_at else None)
    sys.modules[COMPILER] = late
    setattr(sys.modules[package], own, late)
    return True


def import_compiler() -> None:
    """Import it now."""
    compiler = importlib.import_module(COMPILER)
    if isinstance(compiler, LateCompiler):
        compiler.make_way()
