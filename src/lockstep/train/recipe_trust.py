"""Which recipe a folder may name: reading a folder must not run code that came with it.

A run folder may come from anywhere. Its recipe is run if the user types it, if it is built in, or if it is a file
outside the folder whose SHA-256 is the one that the folder records: then it is the user's own file, unchanged.
"""

from __future__ import annotations

from pathlib import Path

from lockstep.errors import BadInput
from lockstep.recipe_file import BUILT_IN
from lockstep.train.spec import source_of


def check_recipe(recipe: str, source: str, folder: Path, command: str) -> None:
    """Refuse a recipe that only the folder vouches for; `command` is what to type, with RECIPE for the recipe."""
    path = recipe.partition(":")[0]
    if path in BUILT_IN:
        return
    try:
        why = why_not_trusted(Path(path), source, folder)
    except (OSError, ValueError, RuntimeError):  # too long, a null character, a loop of links
        why = "is not the path of a file"
    if why:
        raise BadInput(
            f"{folder} names the recipe {path!r:.200}, which {why}. A folder alone cannot have code run: if you trust "
            f"it, type it: {command}"
        )


def why_not_trusted(path: Path, source: str, folder: Path) -> str:
    """Say why a recipe file that a folder names is not the user's own; empty if it is."""
    if path.resolve().is_relative_to(folder.resolve()):
        return "lies inside that folder"
    if path.suffix != ".py" or not path.is_file():
        return "is not a Python file on this machine"
    return "" if source_of(str(path)) == source else "has another content than when the run began"
