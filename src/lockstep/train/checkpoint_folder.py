"""The checkpoints of a run folder: what they are called, which is the last good one, and how many are kept."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from lockstep.errors import BadInput
from lockstep.train.checkpoint_file import Saved
from lockstep.train.tensor_file import Damaged

NAME = re.compile(r"checkpoint-([0-9]{6,})\.safetensors")
KEPT = 2


def path_of(folder: Path, step: int) -> Path:
    """Return the file of the checkpoint after so many steps."""
    return folder / f"checkpoint-{step:06}.safetensors"


def kept(folder: Path) -> list[Path]:
    """Return a folder's checkpoints, the newest first; nothing is read."""
    numbered = [(int(match[1]), path) for path in folder.iterdir() if (match := NAME.fullmatch(path.name))]
    return [path for _, path in sorted(numbered, reverse=True)]


def last_good(folder: Path) -> tuple[Saved, list[str]]:
    """Open the newest checkpoint that is whole; also return what is wrong with newer ones."""
    damaged: list[str] = []
    for path in kept(folder):
        try:
            return Saved(path), damaged
        except Damaged as error:
            damaged.append(str(error))
    if damaged:
        raise BadInput(f"{folder} has no checkpoint that is whole: {'; '.join(damaged)}")
    if older := sorted(folder.glob("checkpoint-*.ls")):
        raise BadInput(
            f"{folder} has {older[-1].name}, which an older version of Lockstep wrote in a format that this one does "
            "not read: use the version that wrote it, or start again with another --out"
        )
    raise BadInput(
        f"{folder} has no checkpoint, so there is nothing to resume: start again with --checkpoint-every N and "
        "another --out"
    )


def prune(folder: Path) -> None:
    """Remove all but the newest checkpoints, and drafts; called when a new one is in place."""
    for path in [*kept(folder)[KEPT:], *folder.glob(".checkpoint-*.draft")]:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
