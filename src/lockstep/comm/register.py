"""Registers `shm` with torch.distributed without importing torch.

The command line must start in a fraction of a second, and torch takes seconds to import. So the backend is registered
now if torch.distributed is loaded; else an import hook waits for that one module and registers right after it is
loaded. `import torch` may come before or after `import lockstep`. The backend's own code is imported when the first
group is created.
"""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from lockstep import process_wide
from lockstep.torch_compat.startup import DISTRIBUTED, skip_flight_recorder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


def _create(options: Any, backend_options: Any = None) -> Any:
    from lockstep.comm.shm import create

    return create(options, backend_options)


def _register(module: ModuleType) -> None:
    # A torch built without distributed support has the module but not the class.
    backend = getattr(module, "Backend", None)
    if backend is not None:
        backend.register_backend("shm", _create, extended_api=True, devices=["cpu"])
        skip_flight_recorder(module, "shm")


class _RegisteringLoader(Loader):
    """Loads a module as its own loader does, then registers."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _register(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _ImportHook(MetaPathFinder):
    """Acts once, when torch.distributed is imported."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != DISTRIBUTED:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _RegisteringLoader(spec.loader)
        return spec


def register() -> None:
    """Register `shm` now, or as soon as torch.distributed is imported; not if the user wants torch left alone."""
    if process_wide.leave("shm"):
        return
    module = sys.modules.get(DISTRIBUTED)
    if module is not None:
        _register(module)
    else:
        sys.meta_path.insert(0, _ImportHook())
