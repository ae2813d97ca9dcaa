"""What a function returned on rank 0, on its way back to the kernel: as what cells define goes to the workers."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import cloudpickle

from lockstep.notebook.blame import blame
from lockstep.notebook.payload import private_file
from lockstep.recipe import Recipe

RETURNED, RECIPE, LOST = "returned.pickle", "returned-a-recipe", "returned-nothing.txt"


def hand_back(folder: Path, value: Any) -> None:
    """Write rank 0's value for the kernel; one that cannot be pickled is only described."""
    if isinstance(value, Recipe):
        (folder / RECIPE).touch()
        return
    try:
        content = cloudpickle.dumps(value)
    except Exception:
        (folder / LOST).write_text(blame(value, "the returned value"), encoding="utf-8")
        return
    with open(os.open(folder / RETURNED, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def returned_recipe(folder: Path) -> bool:
    """Say whether the function turned out to be one that makes a recipe."""
    return (folder / RECIPE).exists()


def returned_value(folder: Path) -> tuple[Any, str]:
    """Return rank 0's value, or None and why there is none."""
    if (folder / LOST).exists():
        return None, (folder / LOST).read_text(encoding="utf-8")
    if not (folder / RETURNED).exists():
        return None, ""  # the function ended the process
    with private_file(folder / RETURNED) as file:  # see [Note: whose pickle] in payload.py
        return pickle.load(file), ""  # noqa: S301
