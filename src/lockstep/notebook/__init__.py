"""Notebooks: train what cells define on several workers, and see the comparison below the cell.

    lockstep.notebook.run(recipe, workers=2)        a TrainedRun: losses, metrics, digest, the trained model
    lockstep.notebook.compare(recipe, workers=2)    the report, inline

No magic, no port, no fork of the kernel: see starter.py.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockstep.notebook.comparing import ComparedWays, compare
    from lockstep.notebook.running import run
    from lockstep.notebook.trained_run import TrainedRun

__all__ = ["ComparedWays", "TrainedRun", "compare", "run"]

# Looked up on first use: a worker imports this package, too, and needs only what unpacks its payload.
_HOMES = {"ComparedWays": "comparing", "TrainedRun": "trained_run", "compare": "comparing", "run": "running"}


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'lockstep.notebook' has no attribute {name!r}")
    return getattr(importlib.import_module(f"lockstep.notebook.{_HOMES[name]}"), name)
