"""Files of a run folder: whole lines and whole files, or none. What is in them is `train/schema`."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from lockstep.errors import BadInput, LockstepError

ATTEMPT = re.compile(r"attempt-[0-9]+")
"""The folder of an attempt before the last."""
AGAIN = "Leave this folder out, or run it again"
"""What to do about a folder that cannot be used."""


class CannotWrite(LockstepError):
    """The run folder cannot be written; the disk is full, or it has been taken away."""


def create_folder(path: Path) -> Path:
    """Make a new, empty run folder; refuse one that exists or cannot be written.

    One that holds earlier attempts, see resume.py, and no setup is as good as new.
    """
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        names = {one.name for one in path.iterdir()} if path.is_dir() else set()
        if "run.json" not in names and any(ATTEMPT.fullmatch(name) for name in names):
            return path
        raise BadInput(f"the output folder {path} exists already: choose another --out, or remove it") from None
    except OSError as error:
        raise BadInput(f"cannot make the output folder {path}: {error.strerror}. Choose another --out") from error
    return path


def write_document(path: Path, document: msgspec.Struct) -> None:
    """Write a JSON file whole or not at all."""
    write_bytes(path, [msgspec.json.format(encode(path, document), indent=1), b"\n"])


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


def read_bytes(path: Path, limit: int, advice: str = AGAIN) -> bytes:
    """Read a regular file of at most so many bytes; refuse anything else with this advice, and never wait for it."""
    try:
        # Without O_NONBLOCK, opening a pipe would wait for somebody to write into it.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise BadInput(f"{path} is not a regular file. {advice}")
            if status.st_size > limit:
                raise BadInput(
                    f"{path} has {status.st_size:,} bytes, and no more than {limit:,} are read of such a file. {advice}"
                )
            return file.read(status.st_size)
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist: is {path.parent} a run folder?") from None
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}. {advice}") from error


def encode(path: Path, value: msgspec.Struct) -> bytes:
    """Return a value as JSON that its reader takes: what would be refused is not written."""
    try:
        content = msgspec.json.encode(value)
    except UnicodeEncodeError as error:
        raise BadInput(f"{path} cannot hold {error.object!r:.80}: it is not Unicode text; use another name") from error
    _decoder(type(value)).decode(content)  # a NaN became null
    return content


@cache
def _decoder(kind: type[msgspec.Struct]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


class Lines:
    """A file of lines. Every line is one write: a killed process leaves whole lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def write(self, line: msgspec.Struct) -> None:
        """Append one line."""
        data = encode(self.path, line) + b"\n"
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


def cannot_write(path: Path, error: OSError) -> CannotWrite:
    """Return the error for a file that the system would not let us write."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    advice = "make room, or choose another --out" if full else "choose another --out"
    return CannotWrite(f"cannot write {path}: {error.strerror or error}. What was written before is whole; {advice}")
