"""Samples held once per host, in an order that depends on the seed and the epoch alone."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockstep.data.augment import Augmented
    from lockstep.data.batch import Packed, Padded
    from lockstep.data.ragged import Ragged

__all__ = ["Augmented", "Packed", "Padded", "Ragged"]

# Looked up on first use: the order of samples needs no torch.
_HOMES = {"Augmented": "augment", "Packed": "batch", "Padded": "batch", "Ragged": "ragged"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'lockstep.data' has no attribute {name!r}")
    return getattr(importlib.import_module(f"lockstep.data.{_HOMES[name]}"), name)
