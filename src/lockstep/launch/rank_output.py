"""Where the output of a rank goes: to the starter's own; of ranks but 0, to files if the starter asks for it.

A notebook does: it shows rank 0 while it trains, and the others when one fails.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

FOLDER = "LOCKSTEP_RANK_OUTPUT"
"""The variable with the folder of these files; it must be one that every host sees."""


def keep_apart(environ: Mapping[str, str], rank: int) -> None:
    """Send what this process and all that it starts prints to the rank's file, if there is one for it."""
    if not environ.get(FOLDER) or rank == 0:
        return
    with contextlib.suppress(OSError):  # no room, no right: output is never worth a training
        file = os.open(output_path(Path(environ[FOLDER]), rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for stream in (1, 2):
            os.dup2(file, stream)
        os.close(file)


def output_path(folder: Path, rank: int) -> Path:
    """Return the file of a rank."""
    return folder / f"rank-{rank}.txt"


def read_outputs(folder: Path, most: int) -> dict[int, str]:
    """Return what the ranks but 0 printed, by rank, of each at most so many of its last characters."""
    outputs = {}
    for path in folder.glob("rank-*.txt"):
        number = path.stem.removeprefix("rank-")
        text = path.read_text(encoding="utf-8", errors="replace").strip()
        if number.isdecimal() and text:
            outputs[int(number)] = text if len(text) <= most else f"...{text[-most:]}"
    return dict(sorted(outputs.items()))
