"""What to say of a run that did not end: where it stopped, and how to go on."""

from __future__ import annotations

import shlex
from pathlib import Path

from lockstep.errors import LockstepError
from lockstep.train.checkpoint_folder import NAME, kept
from lockstep.train.schema.rank_jsonl import rank_path, read_rank, steps_of


def interruption(folder: Path, shown: str) -> str:
    """Return the line for a run that was interrupted; `shown` is its folder as the user typed it."""
    step = last_step(folder)
    where = "interrupted before the first step" if step is None else f"interrupted at step {step}"
    if further := how_to_go_on(folder, shown):
        return f"{where}; {further}"
    if step is None:
        return f"{where}; nothing was trained"
    return f"{where}; it has no checkpoint to go on from: --checkpoint-every N writes them"


def how_to_go_on(folder: Path, shown: str) -> str:
    """Return what to type to go on with a run; empty if it has no checkpoint."""
    checkpoints = kept(folder) if folder.is_dir() else []
    if not checkpoints:
        return ""
    match = NAME.fullmatch(checkpoints[0].name)
    at = f"from its checkpoint after step {int(match[1]) - 1}" if match else "from its checkpoint"
    return f"go on {at} with: lockstep run --resume {shlex.quote(shown)}"


def last_step(folder: Path) -> int | None:
    """Return the last step that rank 0 has done; None if there is none."""
    path = rank_path(folder, 0)
    try:
        steps = steps_of(read_rank(path)) if path.is_file() else []
    except LockstepError:
        return None
    return steps[-1].step if steps else None
