"""Lockstep trains one PyTorch model on many workers: one recipe, every way, the same bits, measured."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lockstep.comm.register import register as _register_shm
from lockstep.version import __version__

if TYPE_CHECKING:
    from lockstep import data, nn, notebook, tensorflow
    from lockstep.epoch_schedule import once_an_epoch
    from lockstep.events import EpochDone, StepDone
    from lockstep.recipe import Loss, Recipe
    from lockstep.train.trainer import Trainer
    from lockstep.world.join import join
    from lockstep.world.place import World

__all__ = [
    "EpochDone",
    "Loss",
    "Recipe",
    "StepDone",
    "Trainer",
    "World",
    "__version__",
    "data",
    "join",
    "nn",
    "notebook",
    "once_an_epoch",
    "tensorflow",
]

# Looked up on first use: the command line must answer before torch is imported.
_HOMES = {
    "EpochDone": "lockstep.events",
    "Loss": "lockstep.recipe",
    "Recipe": "lockstep.recipe",
    "StepDone": "lockstep.events",
    "Trainer": "lockstep.train.trainer",
    "World": "lockstep.world.place",
    "join": "lockstep.world.join",
    "once_an_epoch": "lockstep.epoch_schedule",
}
_PARTS = ("data", "nn", "notebook", "tensorflow")


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return importlib.import_module(f"lockstep.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'lockstep' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


# `dist.init_process_group("shm")` works after `import lockstep`, in either order with `import torch`.
_register_shm()
