"""The checkpoint file: a header that says what is in it, bytes of tensors, and a hash over all of it.

    0    8  magic "LOCKSTEP"
    8    8  version of this layout                    numbers are little-endian, 8 bytes each
    16   8  length of the header
    24   8  length of the whole file
    32   .  header: JSON in UTF-8, spaces up to a multiple of 64
    .    .  the tensors, each from a multiple of 64 on, in the header's order
    end-32  SHA-256 over everything before it

Writing:  1 a draft under another name    2 fsync    3 renamed into place    4 fsync of the folder
Killed before 3, the file of before is untouched; killed after 3, the new one is whole.

Reading checks magic, version, length and hash, and then the header, before any of it is used. It is numbers, text and
bytes: nothing in it is ever executed or unpickled. No torch is needed here.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from lockstep.errors import BadInput
from lockstep.train.records import CannotWrite

MAGIC = b"LOCKSTEP"
VERSION = 1
PREFIX = struct.Struct("<8sQQQ")
HASH_BYTES = 32
ALIGN = 64
MOST_HEADER = 1 << 28
READ_BYTES = 1 << 22
DTYPES = {
    **dict.fromkeys(("bool", "int8", "uint8", "float8_e4m3fn", "float8_e5m2"), 1),
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float32"), 4),
    **dict.fromkeys(("int64", "uint64", "float64", "complex64"), 8),
    "complex128": 16,
}
"""Bytes of an element."""


class Damaged(BadInput):
    """A file that is not, or no longer, a whole checkpoint."""


@dataclass(frozen=True)
class Place:
    """Where a tensor lies in the file."""

    name: str
    """As the digest has it."""
    dtype: str
    """Without `torch.`."""
    shape: tuple[int, ...]
    """Of the plain tensor."""
    start: int
    """Counted from the end of the header."""

    @property
    def nbytes(self) -> int:
        """Its length."""
        return math.prod(self.shape) * DTYPES[self.dtype]


def lay_out(entries: Sequence[tuple[str, str, tuple[int, ...]]]) -> list[Place]:
    """Place tensors (name, dtype, shape) one after another."""
    places: list[Place] = []
    end = 0
    for name, dtype, shape in entries:
        if dtype not in DTYPES:
            raise BadInput(f"{name} has dtype {dtype}, which a checkpoint cannot hold")
        places.append(Place(name, dtype, tuple(shape), end))
        end = _up(end + places[-1].nbytes)
    return places


class Draft:
    """A checkpoint that is being written; it is in place after `finish`, and gone without it."""

    def __init__(self, path: Path, header: dict[str, Any], places: Sequence[Place]) -> None:
        self.path = path
        self._draft = path.with_name(f".{path.name}.draft")
        self._places = list(places)
        self._next = self._begun = 0
        table = [[place.name, place.dtype, list(place.shape), place.start] for place in places]
        text = json.dumps({**header, "tensors": table}, separators=(",", ":"), allow_nan=False).encode()
        text += b" " * (_up(PREFIX.size + len(text)) - PREFIX.size - len(text))
        end = _up(places[-1].start + places[-1].nbytes) if places else 0
        self._begin = PREFIX.size + len(text)
        self.nbytes = self._begin + end + HASH_BYTES
        self._hash = hashlib.sha256()
        with self._failing():
            self._file = os.open(self._draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            self._write(PREFIX.pack(MAGIC, VERSION, len(text), self.nbytes) + text)
        except BaseException:
            self.drop()
            raise

    def add(self, name: str, data: memoryview | bytes) -> None:
        """Append bytes of the next tensor; tensors come in the order of the places, each in one piece or several."""
        if not len(data):
            return
        self._skip_empty()
        place = self._places[self._next]
        if place.name != name or self._begun + len(data) > place.nbytes:
            raise ValueError(
                f"{len(data)} bytes of {name}, and the header expects {place.nbytes - self._begun} of {place.name}"
            )
        self._write(data)
        self._begun += len(data)
        if self._begun == place.nbytes:
            self._write(bytes(_up(place.nbytes) - place.nbytes))
            self._next, self._begun = self._next + 1, 0

    def finish(self) -> None:
        """Put the file in place, see steps 2 to 4 above."""
        self._skip_empty()
        if self._next != len(self._places):
            raise ValueError(f"{len(self._places) - self._next} tensors are missing")
        self._write(self._hash.digest())
        with self._failing():
            os.fsync(self._file)
            os.close(self._file)
            self._file = -1
            self._draft.replace(self.path)
            sync_folder(self.path.parent)

    def _skip_empty(self) -> None:
        """Go past tensors without elements: nothing comes for them."""
        while self._next < len(self._places) and not self._places[self._next].nbytes:
            self._next += 1

    def drop(self) -> None:
        """Take the draft away; safe to call twice, and after `finish`."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        with contextlib.suppress(OSError):
            self._draft.unlink()

    def _write(self, data: memoryview | bytes) -> None:
        self._hash.update(data)
        rest = memoryview(data)
        with self._failing():
            while len(rest):
                rest = rest[os.write(self._file, rest) :]

    @contextlib.contextmanager
    def _failing(self) -> Any:
        try:
            yield
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            advice = "make room" if full else "see to it"
            raise CannotWrite(
                f"cannot write the checkpoint {self.path}: {error.strerror or error}. What was written before it is "
                f"whole: {advice}, and go on from there"
            ) from error


def sync_folder(folder: Path) -> None:
    """Make a rename in a folder last."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Saved:
    """A checkpoint that was checked; a context manager that closes its file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise BadInput(f"the checkpoint {path} does not exist") from None
        except OSError as error:
            raise BadInput(f"the checkpoint {path} cannot be read: {error.strerror}") from error
        try:
            self._begin, self.header, self.places = self._check()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Saved:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; safe to call twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def read(self, place: Place) -> bytearray:
        """Return a tensor's bytes."""
        data = bytearray(place.nbytes)
        _read_into(self._file, memoryview(data), self._begin + place.start, self.path)
        return data

    def _check(self) -> tuple[int, dict[str, Any], list[Place]]:
        """Check everything, in the order in which it can be trusted."""
        status = os.fstat(self._file)
        if not stat.S_ISREG(status.st_mode):
            raise BadInput(f"the checkpoint {self.path} is not a file")
        if status.st_size < PREFIX.size + HASH_BYTES:
            raise Damaged(f"{self.path} has {status.st_size} bytes: it is no checkpoint, or was cut off")
        prefix = bytearray(PREFIX.size)
        _read_into(self._file, memoryview(prefix), 0, self.path)
        magic, version, length, total = PREFIX.unpack(prefix)
        if magic != MAGIC:
            raise Damaged(f"{self.path} is not a checkpoint of Lockstep: it begins with {bytes(magic)!r}")
        if version != VERSION:
            raise BadInput(
                f"{self.path} has version {version}, and this version of Lockstep reads {VERSION}: "
                "go on with the version that wrote it"
            )
        if total != status.st_size or not 0 < length <= min(MOST_HEADER, total - PREFIX.size - HASH_BYTES):
            raise Damaged(f"{self.path} has {status.st_size} bytes and should have {total}: it is cut off or damaged")
        self._check_hash(total - HASH_BYTES)
        text = bytearray(length)
        _read_into(self._file, memoryview(text), PREFIX.size, self.path)
        begin = PREFIX.size + length
        header, places = _read_header(bytes(text), total - HASH_BYTES - begin, self.path)
        return begin, header, places

    def _check_hash(self, length: int) -> None:
        found, buffer = hashlib.sha256(), bytearray(READ_BYTES)
        for start in range(0, length, READ_BYTES):
            part = memoryview(buffer)[: min(READ_BYTES, length - start)]
            _read_into(self._file, part, start, self.path)
            found.update(part)
        stated = bytearray(HASH_BYTES)
        _read_into(self._file, memoryview(stated), length, self.path)
        if found.digest() != stated:
            raise Damaged(f"{self.path} is damaged: its SHA-256 is not the one that was written with it")


def _read_header(text: bytes, room: int, path: Path) -> tuple[dict[str, Any], list[Place]]:
    """Return the header and the places of its tensors; refuse what would reach outside the file."""
    try:
        header = json.loads(text)
        places = [_place(row) for row in header.pop("tensors")]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Damaged(f"{path} has a header that cannot be read: {error}") from error
    end = 0
    for place in places:
        if place.start != end or end + place.nbytes > room:
            raise Damaged(f"{path} has a header that places {place.name} wrongly")
        end = _up(end + place.nbytes)
    if end != room or len({place.name for place in places}) != len(places):
        raise Damaged(f"{path} has a header that does not fit its length")
    return header, places


def _place(row: Any) -> Place:
    name, dtype, shape, start = row
    numbers = [*shape, start]
    if not isinstance(name, str) or dtype not in DTYPES or any(type(n) is not int or n < 0 for n in numbers):
        raise ValueError(f"no tensor is like {row!r:.80}")
    return Place(name, dtype, tuple(shape), start)


def _read_into(file: int, target: memoryview, start: int, path: Path) -> None:
    while len(target):
        try:
            count = os.preadv(file, [target], start)
        except OSError as error:
            raise BadInput(f"the checkpoint {path} cannot be read: {error.strerror}") from error
        if not count:
            raise Damaged(f"{path} ended while it was read")
        target, start = target[count:], start + count


def _up(value: int) -> int:
    return -(-value // ALIGN) * ALIGN
