"""Datasets that are held once per host, and batches in an order that depends only on the seed and the epoch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockstep.data.augment import Augmented
    from lockstep.data.batch import Packed, Padded
    from lockstep.data.ragged import Ragged

__all__ = ["Augmented", "Packed", "Padded", "Ragged"]

# Imported on first use: the sampler needs no torch.
_HOMES = {"Augmented": "augment", "Packed": "batch", "Padded": "batch", "Ragged": "ragged"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'lockstep.data' has no attribute {name!r}")
    return getattr(importlib.import_module(f"lockstep.data.{_HOMES[name]}"), name)
