"""A segment: the bytes of a Ragged, mapped. In memory it has no name; other processes get it by a handle.

    owner                                         another process of the same user and host
      1. memfd, filled, sealed: nobody can write or shrink it any more
      2. maps it privately: reads share the pages, a write copies the page for this process alone
      3. pickled: /proc/<pid>/fd/<n> and the token ---> 4. opens that path, checks the token, maps
                                                        5. has a descriptor of its own from then on

The memory lives as long as one process has it open, and leaves nothing behind when the last is gone. A
segment that was opened from a file is handed over as the path of that file.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import os
import weakref
from multiprocessing import context, reduction
from pathlib import Path
from typing import Any

from lockstep.data.ragged_format import HEADER, NO_HASH, Header, Schema, read_header
from lockstep.errors import BadInput

CHUNK = 16 * 2**20
# Without it the kernel would refuse to map privately what is larger than the memory, though nobody writes.
MAP_NORESERVE = 0x4000
SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

# What this process has open without a name, by token: two handles of the same data share one mapping.
_open: weakref.WeakValueDictionary[bytes, Segment] = weakref.WeakValueDictionary()


class Segment:
    """One private mapping, checked, with the descriptor it came from."""

    header: Header
    schema: Schema

    def __init__(self, descriptor: int, path: Path | None) -> None:
        self.path = path
        self.descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)
        where = str(path) if path else "this memory"
        size = os.fstat(descriptor).st_size
        if size == 0:  # an empty file cannot be mapped
            read_header(memoryview(b""), where)
        self.map = mmap.mmap(
            descriptor, size, flags=mmap.MAP_PRIVATE | MAP_NORESERVE, prot=mmap.PROT_READ | mmap.PROT_WRITE
        )
        self.header, self.schema = read_header(memoryview(self.map), where)

    def verify(self) -> None:
        """Read everything and compare with the hash."""
        if self.header.sha256 == NO_HASH:
            raise BadInput(f"{self.path} holds no hash to verify: it was written with hashed=False")
        found = hashlib.sha256()
        body = memoryview(self.map)[HEADER:]
        for start in range(0, len(body), CHUNK):
            found.update(body[start : start + CHUNK])
        if found.digest() != self.header.sha256:
            raise BadInput(
                f"{self.path} is damaged: its SHA-256 is {found.hexdigest()[:16]}..., and it was written with "
                f"{self.header.sha256.hex()[:16]}...; copy it again"
            )

    def handle(self) -> tuple[Any, bytes]:
        """Return what another process needs to open the same bytes."""
        if self.path is not None:
            return os.fspath(self.path), self.header.token
        if context.get_spawning_popen() is not None:
            # While a process is being started its descriptors can be handed down, which works even if this
            # process drops the data before the new one looks for it.
            return reduction.DupFd(self.descriptor), self.header.token
        return (os.getpid(), self.descriptor), self.header.token


def seal(descriptor: int) -> Segment:
    """Make a finished piece of memory unchangeable, and map it."""
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    segment = Segment(descriptor, None)
    _open[segment.header.token] = segment
    return segment


def open_file(path: Path) -> Segment:
    """Map a file; refuse what is not one of ours, or not whole."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise BadInput(f"cannot open {path}: {error.strerror}") from error
    if not os.path.isfile(path):  # noqa: PTH113 - one call
        os.close(descriptor)
        raise BadInput(f"{path} is not a file")
    return Segment(descriptor, path.absolute())


def attach(where: Any, token: bytes) -> Segment:
    """Open what a handle names."""
    if isinstance(where, str):
        segment = open_file(Path(where))
        if segment.header.token != token:
            raise BadInput(f"{where} holds other data now than when the handle was made: open it again by its path")
        return segment
    descriptor = _of_process(*where) if isinstance(where, tuple) else where.detach()
    known = _open.get(token)
    if known is not None:
        if descriptor != known.descriptor:
            os.close(descriptor)
        return known
    segment = Segment(descriptor, None)
    if segment.header.token != token:
        raise BadInput(_gone(*where) if isinstance(where, tuple) else "the descriptor handed down is another one")
    _open[token] = segment
    return segment


def _of_process(process: int, number: int) -> int:
    link = f"/proc/{process}/fd/{number}"
    with contextlib.suppress(OSError):
        # Look before opening: the number may by now be a terminal or a pipe, and opening that could wait for ever.
        if os.readlink(link).startswith("/memfd:lockstep-ragged"):  # noqa: PTH115 - not a path
            return os.open(link, os.O_RDONLY | os.O_CLOEXEC)
    raise BadInput(_gone(process, number))


def _gone(process: int, number: int) -> str:
    return (
        f"the data of this handle is not there: process {process} of this host no longer holds it (descriptor "
        f"{number}). Keep it there until it is opened here, or save it to a file and send that; a handle works on "
        "one host, for one user"
    )
