"""rank-N.error.json: how a rank failed, in its own words."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta

from lockstep.errors import BadInput
from lockstep.train.schema.reading import read_document
from lockstep.train.schema.scalars import Document, Rank, Time

PATTERN = "rank-*.error.json"
LastStep = Annotated[int, Meta(ge=-1, le=2**53)]
Kind = Literal["input", "own", "loss", "contact", "silent"]


class Failure(Document, frozen=True, kw_only=True):
    """What one rank says about its own end."""

    rank: Rank
    """Which rank."""
    host: str
    """Where it ran."""
    step: LastStep
    """In which step; -1 before the first."""
    kind: Kind
    """`input`: refused before training; `own`: raised here; `loss`: not a finite number; `contact`: another rank was
    lost; `silent`: ended without a word."""
    text: str
    """One sentence, or a traceback."""
    time: Time
    """When, in seconds since the epoch."""


def error_path(folder: Path, rank: int) -> Path:
    """Return the file of a rank."""
    return folder / f"rank-{rank}.error.json"


def read_failures(folder: Path) -> list[Failure]:
    """Return what the ranks of a run folder left, the earliest first; a note that cannot be read is left out."""
    failures: list[Failure] = []
    for path in folder.glob(PATTERN):
        with contextlib.suppress(BadInput):  # the report on a failure must come, from what the others wrote
            failures.append(read_document(path, Failure))
    return sorted(failures, key=lambda failure: failure.time)
