"""Where the bytes of a Ragged are written: memory, or a file that gets its name only when it is complete.

All bytes go through write(), never through a mapping, so that a full disk is an error and not a crash.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.data.free_memory import free_bytes
from lockstep.data.ragged_format import ALIGNMENT, aligned
from lockstep.data.tensor_block import TensorBlock
from lockstep.errors import BadInput


class Target:
    """Writes bytes one after another, counts them, and hashes them with `hashed`."""

    def __init__(self, descriptor: int, name: str, *, hashed: bool = False, in_memory: bool = False) -> None:
        self.name = name
        self.at = 0
        self._descriptor = descriptor
        self._hash = hashlib.sha256() if hashed else None
        self._checked = 0 if in_memory else None

    def write(self, buffers: Sequence[Any], size: int) -> None:
        """Append buffers of `size` bytes in all."""
        self._append(size, lambda: os.writev(self._descriptor, buffers), lambda: buffers)

    def write_block(self, block: TensorBlock) -> None:
        """Append the bytes of many tensors."""
        self._append(block.size, lambda: block.writev(self._descriptor), block.buffers)

    def _append(self, size: int, send: Callable[[], int], buffers: Callable[[], Sequence[Any]]) -> None:
        """Write `size` bytes in one call; `buffers` are the same bytes, for the hash and for a short write's rest."""
        if self._checked is not None and self.at + size > self._checked:
            self._check_room(size)
        if self._hash is not None:
            for buffer in buffers():
                self._hash.update(_flat(buffer))
        with self.explained():
            done = send() if size else 0
            if done < size:  # a call writes at most 2 GiB, and a signal can interrupt it
                self._write_rest(buffers(), done)
        self.at += size

    def skip(self, size: int) -> None:
        """Reserve `size` bytes at the front; they are not hashed."""
        with self.explained():
            os.lseek(self._descriptor, size, os.SEEK_SET)
        self.at = size

    def write_front(self, data: bytes) -> None:
        """Write the reserved bytes at the front."""
        with self.explained():
            os.pwrite(self._descriptor, data, 0)

    @property
    def sha256(self) -> bytes | None:
        """The hash of what was written, with `hashed`."""
        return self._hash.digest() if self._hash is not None else None

    def align(self, to: int = ALIGNMENT) -> None:
        """Write zeros up to the next boundary."""
        gap = aligned(self.at, to) - self.at
        self.write([bytes(gap)], gap)

    def _write_rest(self, buffers: Sequence[Any], done: int) -> None:
        for buffer in buffers:
            left = _flat(buffer)
            skip = min(done, len(left))
            done, left = done - skip, left[skip:]
            while left:
                left = left[os.write(self._descriptor, left) :]

    def _check_room(self, size: int) -> None:
        """Raise if the memory does not suffice, before the kernel kills the process; checked from time to time."""
        free = free_bytes()
        if size > free:
            raise BadInput(
                f"the data does not fit in memory: it has {(self.at + size) / 2**20:.0f} MiB so far, and "
                f"{free / 2**20:.0f} MiB are free. Write it to a file instead: Ragged.write(path, items)"
            )
        self._checked = self.at + size + min(free // 4, 256 * 2**20)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Raise the system's error as one that says what to do."""
        try:
            yield
        except OSError as error:
            raise BadInput(
                f"cannot write {self.name}: {error.strerror}; free some space, or choose another folder"
            ) from error


def _flat(buffer: Any) -> memoryview:
    """Return the bytes of a buffer; a memoryview of an empty or many-dimensional array does not cast."""
    plain: Any = buffer.reshape(-1).view(np.uint8) if isinstance(buffer, np.ndarray) else buffer
    return memoryview(plain)


@contextmanager
def new_file(path: Path, *, hashed: bool) -> Iterator[Target]:
    """Yield a file to write to; it gets its name when it is complete, and is removed after an error."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror}; choose another folder") from error
    try:
        target = Target(descriptor, str(path), hashed=hashed)
        try:
            yield target
            with target.explained():
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        with target.explained():
            part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
