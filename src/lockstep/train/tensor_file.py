"""Writing and reading a file of tensors: whole or not there, and checked before it is used.

Writing:  1 a draft without a name, its header first    2 tensors, each at its place, in one piece or several
          3 the hash    4 fsync    5 a name of its own, then renamed into place    6 fsync of the folder
Killed before 5, the file of before is untouched, and the kernel takes the draft away; killed after 5, the new one is
whole. A file system without unnamed files (NFS) has the draft under another name from 1 on.

The hash is SHA-256 over the header, with zeros where the hash itself stands, and over the SHA-256 of every tensor, in
the order of the header. So a tensor can be hashed when it comes, whatever came before it.

Reading checks length, header and hash before anything is used. It is numbers, text and bytes: nothing in it is ever
executed or unpickled. No torch is needed here.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from lockstep.errors import BadInput
from lockstep.train.records import CannotWrite, cannot_write
from lockstep.train.tensor_format import (
    BEGINS,
    HASH_AT,
    MOST_HEADER,
    NO_HASH,
    PREFIX,
    Layout,
    StoredTensor,
    content_of,
    make_header,
    place_tensors,
    read_layout,
)

if TYPE_CHECKING:
    from torch import Tensor

SCHEMA = 2
"""Of our content in the metadata; files of schema 1 had a format of their own."""
OLDER = b"LOCKSTEP"
"""What files of schema 1 begin with."""
READ_BYTES = 1 << 22
LOAD_WEIGHTS = "load weights by model.load_state_dict(load_file(path)), with load_file of safetensors.torch"
KINDS = {
    "checkpoint": "it is a checkpoint, of which `lockstep export` makes weights",
    "weights": f"it holds the weights of a run, without the optimizer's state; {LOAD_WEIGHTS}",
}
"""What each kind of file is for, to somebody who took it for another."""


class Damaged(BadInput):
    """A file that is not, or no longer, a whole file of its kind."""


class TensorDraft:
    """A file that is being written; it is in place after `finish`, and gone without it."""

    def __init__(
        self, path: Path, kind: str, content: Mapping[str, Any], entries: Sequence[tuple[str, str, tuple[int, ...]]]
    ) -> None:
        self.path = path
        self._draft = path.with_name(f".{path.name}.draft")
        tensors = place_tensors(entries)
        self._tensors = {tensor.name: tensor for tensor in tensors}
        self._hashers = {tensor.name: hashlib.sha256() for tensor in tensors}
        self._written = dict.fromkeys(self._tensors, 0)
        self._header = make_header({"kind": kind, "schema": SCHEMA, **content}, tensors)
        self.nbytes = len(self._header) + sum(tensor.nbytes for tensor in tensors)
        with self._failing():
            self._file, self._unnamed = open_draft(self._draft)
        try:
            self._write(self._header, 0)
        except BaseException:
            self.drop()
            raise

    def add(self, name: str, data: memoryview | bytes | bytearray) -> None:
        """Write the next bytes of a tensor; tensors come in any order, each in one piece or several."""
        tensor = self._tensors.get(name)
        if tensor is None or self._written[name] + len(data) > tensor.nbytes:
            room = tensor.nbytes - self._written[name] if tensor else "none"
            raise ValueError(f"{len(data)} bytes of {name}, and the header expects {room} of it")
        self._hashers[name].update(data)
        self._write(data, len(self._header) + tensor.start + self._written[name])
        self._written[name] += len(data)

    def finish(self) -> None:
        """Put the file in place, see steps 3 to 6 above."""
        if missing := [one.name for one in self._tensors.values() if self._written[one.name] != one.nbytes]:
            raise ValueError(f"{len(missing)} tensors are missing or cut: {missing[0]} is the first")
        self._write(_whole_hash(self._header, [hasher.digest() for hasher in self._hashers.values()]), HASH_AT)
        with self._failing():
            os.fsync(self._file)
            if self._unnamed:
                name_draft(self._file, self._draft)
            os.close(self._file)
            self._file = -1
            self._draft.replace(self.path)
            sync_folder(self.path.parent)

    def drop(self) -> None:
        """Take the draft away; safe to call twice, and after `finish`."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        with contextlib.suppress(OSError):
            self._draft.unlink()

    def cannot_write(self, error: OSError) -> CannotWrite:
        """Return the error for a file that the system would not let us write."""
        return cannot_write(self.path, error)

    def _write(self, data: memoryview | bytes | bytearray, start: int) -> None:
        rest = memoryview(data)
        with self._failing():
            while len(rest):
                count = os.pwrite(self._file, rest, start)
                rest, start = rest[count:], start + count

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self.cannot_write(error) from error


class TensorFile:
    """A file that was checked; a context manager that closes it.

    `verify=False` leaves the hash out, for what only looks: it takes reading the whole file.
    """

    def __init__(self, path: Path, kind: str, *, verify: bool = True) -> None:
        self.path = path
        self._kind = kind
        self._verify = verify
        try:
            # Without O_NONBLOCK, opening a pipe would wait for somebody to write into it.
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            raise BadInput(f"the {kind} file {path} does not exist") from None
        except (OSError, ValueError) as error:  # a null character in the name
            reason = getattr(error, "strerror", None) or error
            raise BadInput(f"the {kind} file {path} cannot be read: {reason}") from error
        try:
            self._begin, self.content, tensors = self._check()
            self.tensors = {tensor.name: tensor for tensor in tensors}
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
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

    def read(self, name: str) -> bytearray:
        """Return a tensor's bytes."""
        data = bytearray(self.tensors[name].nbytes)
        self._read_into(memoryview(data), self._begin + self.tensors[name].start)
        return data

    def blocks(self, name: str, size: int = READ_BYTES) -> Iterator[memoryview]:
        """Yield a tensor's bytes, `size` at a time; each block lasts until the next."""
        tensor = self.tensors[name]
        yield from self._blocks(self._begin + tensor.start, tensor.nbytes, size)

    def _check(self) -> tuple[int, dict[str, Any], tuple[StoredTensor, ...]]:
        """Check everything, in the order in which it can be trusted."""
        status = os.fstat(self._file)
        if not stat.S_ISREG(status.st_mode):
            raise BadInput(f"the {self._kind} file {self.path} is not a file")
        header, layout = self._read_header(status.st_size)
        if not header.startswith(BEGINS, PREFIX.size) or "lockstep" not in layout.metadata:
            raise Damaged(f"{self.path} is a safetensors file, but not one of a run: {LOAD_WEIGHTS}")
        if len(header) + layout.nbytes != status.st_size:
            raise Damaged(
                f"{self.path} has {status.st_size} bytes and should have {len(header) + layout.nbytes}: "
                "it is cut off or damaged"
            )
        if self._verify:
            self._check_hash(header, layout)
        try:
            content, tensors = content_of(layout)
            kind, schema = content.pop("kind"), content.pop("schema")
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise Damaged(f"{self.path} has a header that cannot be read: {error}") from error
        if kind != self._kind:
            instead = KINDS.get(str(kind), f"it says that it is {kind!r:.40}")
            raise Damaged(f"{self.path} is not a {self._kind} file: {instead}")
        if schema != SCHEMA:
            raise BadInput(
                f"{self.path} has schema {schema!r}, and this version of Lockstep reads {SCHEMA}: "
                "use the version that wrote it"
            )
        return len(header), content, tensors

    def _read_header(self, size: int) -> tuple[bytes, Layout]:
        if size < PREFIX.size:
            raise Damaged(f"{self.path} has {size} bytes: it is no {self._kind} file, or was cut off")
        prefix = bytearray(PREFIX.size)
        self._read_into(memoryview(prefix), 0)
        if prefix == OLDER:
            raise BadInput(
                f"{self.path} was written by an older version of Lockstep, in a format that this one does not read: "
                "use the version that wrote it"
            )
        (length,) = PREFIX.unpack(prefix)
        if length > MOST_HEADER:
            raise Damaged(f"{self.path} is no safetensors file: it begins with {bytes(prefix)!r}")
        if PREFIX.size + length > size:
            raise Damaged(f"{self.path} has {size} bytes, and its header alone has {length}: it is cut off or damaged")
        header = bytearray(PREFIX.size + length)
        self._read_into(memoryview(header), 0)
        try:
            return bytes(header), read_layout(bytes(header[PREFIX.size :]))
        except (ValueError, TypeError, RecursionError) as error:
            raise Damaged(f"{self.path} has a header that cannot be read: {error}") from error

    def _check_hash(self, header: bytes, layout: Layout) -> None:
        hashes = []
        for tensor in layout.tensors:
            hasher = hashlib.sha256()
            for block in self._blocks(len(header) + tensor.start, tensor.nbytes):
                hasher.update(block)
            hashes.append(hasher.digest())
        written = header[HASH_AT : HASH_AT + len(NO_HASH)]
        if _whole_hash(header, hashes) != written:
            raise Damaged(f"{self.path} is damaged: its SHA-256 is not the one that was written with it")

    def _blocks(self, start: int, nbytes: int, size: int = READ_BYTES) -> Iterator[memoryview]:
        buffer = memoryview(bytearray(min(size, nbytes)))
        for offset in range(0, nbytes, size):
            block = buffer[: min(size, nbytes - offset)]
            self._read_into(block, start + offset)
            yield block

    def _read_into(self, target: memoryview, start: int) -> None:
        while len(target):
            try:
                count = os.preadv(self._file, [target], start)
            except OSError as error:
                raise BadInput(f"the {self._kind} file {self.path} cannot be read: {error.strerror}") from error
            if not count:
                raise Damaged(f"{self.path} ended while it was read")
            target, start = target[count:], start + count


def as_bytes(tensor: Tensor) -> memoryview:
    """Return a tensor's bytes; nothing is copied where it lies on the CPU in one piece."""
    import torch

    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")


def open_draft(path: Path) -> tuple[int, bool]:
    """Open a new file for what will be at a path; also say whether it has no name yet."""
    try:
        return os.open(path.parent, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o644), True
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL):
            raise
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644), False


def name_draft(descriptor: int, path: Path) -> None:
    """Give an unnamed file a name, in place of what a killed process left there."""
    path.unlink(missing_ok=True)
    # With a folder's descriptor this is linkat, which follows the link in /proc to the file itself.
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.link(f"/proc/self/fd/{descriptor}", path.name, dst_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(folder)


def sync_folder(folder: Path) -> None:
    """Make a rename in a folder last."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _whole_hash(header: bytes, hashes: Sequence[bytes]) -> bytes:
    """Return the hash of a file as text, from its header and the hashes of its tensors."""
    whole = hashlib.sha256(header[:HASH_AT] + NO_HASH + header[HASH_AT + len(NO_HASH) :])
    for one in hashes:
        whole.update(one)
    return whole.hexdigest().encode()
