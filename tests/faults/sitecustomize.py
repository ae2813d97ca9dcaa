"""Python imports this at its start if the folder is on its path: processes that a command starts then fail.

LOCKSTEP_TEST_FAULT says which call of torch raises, and in which processes:

    torch:set_num_threads                   in all that the command starts
    torch.distributed:new_group rank 1      in the rank 1 of a benchmark, while the other ranks wait for it
"""

from __future__ import annotations

import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

WORDS = "injected by a test"


class Faulty(Loader):
    """Loads a module and replaces one of its functions."""

    def __init__(self, loader: Loader, function: str) -> None:
        self.loader, self.function = loader, function

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)

        def fail(*_: object, **__: object) -> None:
            raise ValueError(WORDS)

        setattr(module, self.function, fail)


class Finder(MetaPathFinder):
    """Finds one module, and makes it faulty."""

    def __init__(self, module: str, function: str) -> None:
        self.module, self.function = module, function

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self.module:
            return None
        spec = PathFinder.find_spec(name, path)
        assert spec is not None
        assert spec.loader is not None
        spec.loader = Faulty(spec.loader, self.function)
        return spec


fault, _, where = os.environ.get("LOCKSTEP_TEST_FAULT", "").partition(" ")
chosen = where.replace("rank ", '"rank": ') in sys.orig_argv[-1]  # a rank is told its place by its last argument
if fault and chosen and "bench" not in sys.orig_argv:
    sys.meta_path.insert(0, Finder(*fault.split(":")))
