"""The launchers by the name a user types."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from lockstep.errors import BadInput, nearest

if TYPE_CHECKING:
    from lockstep.launch.base import Launcher

LAUNCHERS = {
    "inline": "Inline",
    "spawn": "Spawn",
    "torchrun": "Torchrun",
    "srun": "Srun",
    "mpirun": "Mpirun",
}


def find(name: str) -> Launcher:
    """Return a launcher that can be used here, or refuse with the reason."""
    if name not in LAUNCHERS:
        raise BadInput(f"no launcher called {name!r}{nearest(name, list(LAUNCHERS))}")
    made: Launcher = getattr(importlib.import_module(f"lockstep.launch.{name}"), LAUNCHERS[name])()
    if (reason := made.unavailable()) is not None:
        raise BadInput(reason)
    return made
