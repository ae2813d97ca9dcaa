"""The bytes of a Ragged, mapped. Memory without a file has no name; other processes get it by a handle.

    owner                                             another process of the same user and host
    1 fill a memfd and seal it: nobody can write or shrink it any more
    2 map it privately: reads share the pages, a write copies the page for this process alone
    3 pickle: /proc/<pid>/fd/<n> and the token  --->  4 open that path, check the token, map it
                                                      5 keep a descriptor of its own from then on

The memory lives as long as one process has it open; nothing is left behind when the last has ended. A mapping that was
opened from a file is pickled as the path of that file.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import os
import stat
import weakref
from multiprocessing import context, reduction
from pathlib import Path
from typing import Any

from lockstep.data.ragged_format import HEADER_BYTES, NO_HASH, RaggedHeader, Schema, read_header
from lockstep.errors import BadInput

CHUNK = 16 * 2**20
# Without this flag the kernel would refuse a private mapping that is larger than the memory, even if nobody writes.
MAP_NORESERVE = 0x4000
SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

# The mappings without a file that this process has open, by token: two handles of the same data share one mapping.
_open: weakref.WeakValueDictionary[bytes, RaggedMapping] = weakref.WeakValueDictionary()


class RaggedMapping:
    """One private mapping, checked, with its descriptor."""

    header: RaggedHeader
    schema: Schema

    def __init__(self, descriptor: int, path: Path | None) -> None:
        self.path = path
        self.descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)
        where = str(path) if path else "this memory"
        size = os.fstat(descriptor).st_size
        if size == 0:  # an empty file cannot be mapped
            read_header(memoryview(b""), where)
        try:
            self.map = mmap.mmap(
                descriptor, size, flags=mmap.MAP_PRIVATE | MAP_NORESERVE, prot=mmap.PROT_READ | mmap.PROT_WRITE
            )
        except OSError as error:
            raise BadInput(f"cannot map {where} ({size} bytes): {error.strerror}; check `ulimit -v`") from error
        self.header, self.schema = read_header(memoryview(self.map), where)

    def verify(self) -> None:
        """Read everything and compare it with the stored hash."""
        if self.header.sha256 == NO_HASH:
            raise BadInput(
                f"{self.path} has no hash to verify, because it was written with hashed=False: write it with "
                "hashed=True, or open it without verify=True"
            )
        actual = hashlib.sha256()
        body = memoryview(self.map)[HEADER_BYTES:]
        for start in range(0, len(body), CHUNK):
            actual.update(body[start : start + CHUNK])
        if actual.digest() != self.header.sha256:
            raise BadInput(
                f"{self.path} is damaged: its SHA-256 is {actual.hexdigest()[:16]}..., expected "
                f"{self.header.sha256.hex()[:16]}...; copy it again"
            )

    def handle(self) -> tuple[Any, bytes]:
        """Return what another process needs to open the same bytes."""
        if self.path is not None:
            return os.fspath(self.path), self.header.token
        if context.get_spawning_popen() is not None:
            # A process that is being started can inherit descriptors, which works even if this process frees the
            # data before the new one opens it.
            return reduction.DupFd(self.descriptor), self.header.token
        return (os.getpid(), self.descriptor), self.header.token


def seal(descriptor: int) -> RaggedMapping:
    """Seal finished memory against changes, and map it."""
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    mapping = RaggedMapping(descriptor, None)
    _open[mapping.header.token] = mapping
    return mapping


def open_file(path: Path) -> RaggedMapping:
    """Map a file; raise if it is not a complete Ragged."""
    try:
        # Without O_NONBLOCK, opening a pipe would wait for somebody to write into it.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:  # a null character in the name
        reason = getattr(error, "strerror", None) or error
        raise BadInput(f"cannot open {path}: {reason}; check the path and its permissions") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise BadInput(f"{path} is not a file: pass the path of a file that Ragged.write or Ragged.save wrote")
    return RaggedMapping(descriptor, path.absolute())


def attach(where: Any, token: bytes) -> RaggedMapping:
    """Open the data of a handle."""
    if isinstance(where, str):
        mapping = open_file(Path(where))
        if mapping.header.token != token:
            raise BadInput(f"{where} has changed since the handle was made: open it again by its path")
        return mapping
    descriptor = _of_process(*where) if isinstance(where, tuple) else where.detach()
    known = _open.get(token)
    if known is not None:
        if descriptor != known.descriptor:
            os.close(descriptor)
        return known
    mapping = RaggedMapping(descriptor, None)
    if mapping.header.token != token:
        raise BadInput(
            _gone(*where) if isinstance(where, tuple) else "the inherited descriptor has other data: start again"
        )
    _open[token] = mapping
    return mapping


def _of_process(process: int, number: int) -> int:
    link = f"/proc/{process}/fd/{number}"
    with contextlib.suppress(OSError):
        # Check before opening: the number may now be a terminal or a pipe, and opening that could block for ever.
        if os.readlink(link).startswith("/memfd:lockstep-ragged"):  # noqa: PTH115 - not a path
            return os.open(link, os.O_RDONLY | os.O_CLOEXEC)
    raise BadInput(_gone(process, number))


def _gone(process: int, number: int) -> str:
    return (
        f"the data of this handle no longer exists: process {process} of this host does not hold it (descriptor "
        f"{number}). Keep it there until it is opened here, or save it to a file and send the path; a handle works "
        "on one host, for one user"
    )
