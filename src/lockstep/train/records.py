"""The run folder: what was asked, what each rank did, how it ended. Whole lines and whole files, or none.

run.json            the order: recipe, strategy, workers, threads, seed, versions
rank-N.jsonl        a header, then a line per step, then an end line
prints.jsonl        fingerprints of the weights at a few steps
final.safetensors   the trained weights, under the plain model's names
rank-N.error.json   how rank N failed, if it did
result.json         digest, time, throughput, memory, loss, accuracy, outcome
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lockstep.errors import BadInput, LockstepError

SCHEMA = 1
AGAIN = "Leave this folder out, or run it again"
"""What to do about a folder that cannot be used."""


class CannotWrite(LockstepError):
    """The run folder cannot be written; the disk is full, or it has been taken away."""


def create_folder(path: Path) -> Path:
    """Make a new, empty run folder; refuse one that exists or cannot be written."""
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        raise BadInput(f"the output folder {path} exists already: choose another --out, or remove it") from None
    except OSError as error:
        raise BadInput(f"cannot make the output folder {path}: {error.strerror}. Choose another --out") from error
    return path


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file whole or not at all."""
    text = json.dumps({"schema": SCHEMA, **content}, indent=1, allow_nan=False) + "\n"
    write_bytes(path, [text.encode()])


def write_bytes(path: Path, parts: Iterable[bytes]) -> None:
    """Write a file whole or not at all: under another name first, then moved into place."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(draft, "wb") as file:
            file.writelines(parts)
        draft.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise cannot_write(path, error) from error


def read_json(path: Path) -> dict[str, Any]:
    """Read a file that `write_json` wrote, and refuse what it did not."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist: is {path.parent} a run folder?") from None
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} cannot be read: {error}. {AGAIN}") from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        found = content.get("schema") if isinstance(content, dict) else None
        raise BadInput(
            f"{path} has schema {found!r}, and this version reads {SCHEMA}: it was written by another version. {AGAIN}"
        )
    return content


class Lines:
    """A file of lines. Every line is one write: a killed process leaves whole lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def write(self, line: dict[str, Any]) -> None:
        """Append one line."""
        data = (json.dumps(line, allow_nan=False, separators=(",", ":")) + "\n").encode()
        before = os.fstat(self._file).st_size
        try:
            written = os.write(self._file, data)
            if written < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, before)  # half a line would make the folder unreadable
            raise cannot_write(self.path, error) from error

    def close(self) -> None:
        """Close the file; safe to call twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class Records(Lines):
    """One rank's log."""

    def __init__(self, folder: Path, rank: int) -> None:
        super().__init__(folder / f"rank-{rank}.jsonl")
        self.step = -1
        """The step that is being computed; -1 before the first."""


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return a rank's lines, each of them a JSON object."""
    lines = []
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from error
    for number, data in enumerate(content.split(b"\n")[: -1 if content.endswith(b"\n") else None], start=1):
        try:
            line = json.loads(data)
        except ValueError as error:
            raise BadInput(f"{path} is damaged at line {number}: {error}. {AGAIN}") from error
        if not isinstance(line, dict):
            raise BadInput(f"{path} is damaged at line {number}: {line!r:.40} is no JSON object. {AGAIN}")
        lines.append(line)
    return lines


def cannot_write(path: Path, error: OSError) -> CannotWrite:
    """Return the error for a file that the system would not let us write."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    advice = "make room, or choose another --out" if full else "choose another --out"
    return CannotWrite(f"cannot write {path}: {error.strerror or error}. What was written before is whole; {advice}")
