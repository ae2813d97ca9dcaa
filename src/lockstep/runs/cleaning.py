"""Removing runs: which are chosen, whether a folder holds anything that is not Lockstep's, and the removal itself.

Only what the schema knows as a run is ever touched, and only files that Lockstep writes are removed. A folder with
anything else in it stays whole. run.json goes last, so a removal that was interrupted can be done again.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import Path

from lockstep.errors import BadInput
from lockstep.runs.listing import ListedRun, State
from lockstep.train.folder_lock import holding
from lockstep.train.schema.run_json import NAME, read_setup

DAY = 86400.0
OWN_FILES = re.compile(
    r"run\.json|result\.json|rank-\d+\.jsonl|rank-\d+\.(error\.json|stack\.txt)|fingerprints\.jsonl"
    r"|(final|best|checkpoint-\d{6,})\.safetensors"
    r"|\.(run|result)\.json\.\d+|\.rank-\d+\.error\.json\.\d+|\.[\w-]+\.safetensors\.draft"
)
OWN_FOLDERS = {
    re.compile(r"\.?attempt-\d+"): OWN_FILES,
    re.compile(r"tensorboard"): re.compile(r"events\.out\.tfevents\..*"),
}


def chosen(
    runs: Iterable[ListedRun], *, states: Collection[State], older_than: float | None, now: float
) -> list[ListedRun]:
    """Return the runs of these states, or of any that has ended, that were started more than so many days ago. Pure.

    A run that goes on, or that cannot be read, is never among them.
    """
    wanted = set(states) or {State.done, State.stopped, State.failed, State.unfinished}
    return [
        run
        for run in runs
        if run.state in wanted - {State.running, State.unreadable}
        and (older_than is None or now - run.created > older_than * DAY)
    ]


def own_paths(folder: Path) -> list[Path]:
    """Return everything in a run folder, run.json last; refuse it if anything in it is not Lockstep's."""
    paths: list[Path] = []
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            files = next((files for names, files in OWN_FOLDERS.items() if names.fullmatch(path.name)), None)
            inside = sorted(path.iterdir())
            for other in (one for one in inside if files is None or not _is_own(one, files)):
                raise _not_ours(folder, other)
            if files is None:
                raise _not_ours(folder, path)
            paths += [*inside, path]
        elif not _is_own(path, OWN_FILES):
            raise _not_ours(folder, path)
        elif path.name != NAME:
            paths.append(path)
    return [*paths, folder / NAME]


def remove(folder: Path) -> None:
    """Remove a run folder; refuse one that is no run, is in use, or holds what is not Lockstep's."""
    if folder.is_symlink():
        raise BadInput(f"{folder} is a link, and is left alone: give the folder it leads to")
    read_setup(folder)
    with holding(folder):
        try:
            for path in own_paths(folder):
                path.rmdir() if path.is_dir() else path.unlink()
            folder.rmdir()
        except OSError as error:
            raise BadInput(f"{folder} cannot be removed: {error.strerror or error}. Remove it by hand") from error


def _is_own(path: Path, names: re.Pattern[str]) -> bool:
    return names.fullmatch(path.name) is not None and path.is_file() and not path.is_symlink()


def _not_ours(folder: Path, path: Path) -> BadInput:
    return BadInput(
        f"{folder} holds {path.relative_to(folder)}, which Lockstep did not write, and is left alone: move that away, "
        "or remove the folder by hand"
    )
