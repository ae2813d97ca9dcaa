"""Groups of ranks as the parameters of a fixture."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest


def groups(named: Mapping[str, Any], pinned: Collection[str]) -> list[Any]:
    """Return one parameter for each group, by name; those that are pinned run on the torch of constraints.txt only."""
    return [
        pytest.param(group, id=name, marks=[pytest.mark.pinned_torch] if name in pinned else [])
        for name, group in named.items()
    ]
