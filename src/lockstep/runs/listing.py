"""What is in a folder of runs: the state of each, how far it came, and how large it is."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgspec

from lockstep.errors import BadInput
from lockstep.train.folder_lock import is_held
from lockstep.train.schema.plan_json import NAME as PLAN
from lockstep.train.schema.rank_jsonl import PATTERN as RANKS
from lockstep.train.schema.rank_jsonl import RankLine, StepLine, rank_path
from lockstep.train.schema.result_json import NAME as RESULT
from lockstep.train.schema.result_json import Done, Failed, read_result
from lockstep.train.schema.run_json import NAME as SETUP
from lockstep.train.schema.run_json import read_setup

TAIL = 1 << 16
"""Bytes at the end of a rank's records in which its last step is looked for."""
ACTIVE_SECONDS = 600.0
"""Where a file system has no locks, a run whose records changed so recently counts as running."""


START_SECONDS = 60.0
"""A run without any records counts as running for so long: its folder is there a moment before a lock on it is."""


class State(StrEnum):
    """How a run stands."""

    done = "done"
    stopped = "stopped early"
    failed = "failed"
    running = "running"
    unfinished = "unfinished"
    """It has no result, and no process trains in it: it was killed."""
    unreadable = "unreadable"
    """Its run.json is not of this version, or damaged."""


@dataclass(frozen=True, kw_only=True)
class ListedRun:
    """One run folder."""

    folder: Path
    """Where it is."""
    state: State
    """How it stands."""
    created: float
    """When it was started, in seconds since the epoch."""
    bytes: int
    """Of all its files."""
    recipe: str = ""
    """What is trained."""
    strategy: str = ""
    """How."""
    workers: int = 0
    """On how many."""
    threads: int | None = None
    """Of each of them; None: left to the user, or not known."""
    steps: int = 0
    """Done so far."""
    planned: int = 0
    """Steps that were asked for."""
    loss: float | None = None
    """Of the last step: over all ranks when the run is done, else as rank 0 recorded it."""
    digest: str = ""
    """Of the trained state, when the run is done."""
    why: str = ""
    """Why it failed or cannot be read, on one line."""


def list_runs(folder: Path) -> list[ListedRun]:
    """Return the runs in a folder, those of its comparisons included, the oldest first."""
    return sorted((listed(path) for path in run_folders(folder)), key=lambda run: run.created)


def run_folders(folder: Path, *, comparisons: bool = True) -> Iterator[Path]:
    """Yield the run folders that a folder is, or holds; those of the comparisons in it if asked for."""
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise BadInput(f"{folder} {what}: give the folder that holds runs, such as the --out of `lockstep run`")
    if (folder / SETUP).is_file():
        yield folder
        return
    for path in sorted(folder.iterdir()):
        if path.is_symlink() or not path.is_dir():
            continue
        if (path / SETUP).is_file():
            yield path
        elif comparisons and (path / PLAN).is_file():
            yield from (run.parent for run in sorted(path.glob(f"*/{SETUP}")))


def listed(folder: Path) -> ListedRun:
    """Return what a run folder says of itself; nothing in it is believed, and nothing is changed."""
    size, changed = _measure(folder)
    try:
        setup = read_setup(folder)
        state, result = _state(folder, changed)
    except BadInput as error:
        return ListedRun(folder=folder, state=State.unreadable, created=changed, bytes=size, why=_line(str(error)))
    last = last_step(folder)
    steps, loss, digest, why = (last.step + 1 if last else 0), (last.loss if last else None), "", ""
    if isinstance(result, Done):
        steps, loss, digest, why = result.steps, result.loss, result.digest, result.stopped
    elif isinstance(result, Failed):
        why = _line(result.why)
    return ListedRun(
        folder=folder,
        state=state,
        created=setup.created,
        bytes=size,
        steps=steps,
        loss=loss,
        digest=digest,
        why=why,
        recipe=setup.recipe.name,
        strategy=setup.spec.strategy,
        workers=setup.spec.workers,
        threads=setup.spec.threads,
        planned=setup.plan.steps,
    )


def last_step(folder: Path) -> StepLine | None:
    """Return the last step that rank 0 recorded, from the end of its records; None if there is none."""
    with contextlib.suppress(OSError), open(rank_path(folder, 0), "rb", opener=_at_once) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - TAIL))
        for line in reversed(file.read(TAIL).split(b"\n")):
            with contextlib.suppress(ValueError, RecursionError):  # half a line
                record = _LINES.decode(line)
                if isinstance(record, StepLine):
                    return record
    return None


_LINES: msgspec.json.Decoder[RankLine] = msgspec.json.Decoder(RankLine)


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)  # a pipe in its place is not waited for


def _state(folder: Path, changed: float) -> tuple[State, Done | Failed | None]:
    held, ended = is_held(folder), (folder / RESULT).exists()
    begun = any(folder.glob(RANKS))
    grace = ACTIVE_SECONDS if held is None else 0.0 if begun else START_SECONDS
    if held or (not ended and time.time() - changed < grace):
        return State.running, None
    if not ended:
        return State.unfinished, None
    result = read_result(folder)
    if isinstance(result, Failed):
        return State.failed, result
    return State.stopped if result.stopped else State.done, result


def _measure(folder: Path) -> tuple[int, float]:
    """Return the bytes of all files in a folder, and when the newest of them was changed."""
    size, changed = 0, folder.lstat().st_mtime
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # gone meanwhile
                status = (Path(place) / name).lstat()
                size, changed = size + status.st_size, max(changed, status.st_mtime)
    return size, changed


def _line(text: str) -> str:
    """Return the first line of a report."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
