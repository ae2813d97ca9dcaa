"""Memory that several processes map, without a name that could be left behind.

[Note: segment lifetime]
The memory is a memfd: it has no path, and the kernel frees it when the last process that maps it has ended, in whatever
way. One process creates it, and the others open it once through /proc/<pid>/fd/<n>, which the kernel allows only to
processes of the same user (the mode is 0600 as well); then every descriptor but the mapping's own is closed.
Where the kernel refuses memfd_create, an unlinked file in /dev/shm is used, wholly reserved before use, because a page
that does not fit later would kill the process with SIGBUS.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from pathlib import Path
from typing import Final

from lockstep.errors import BadInput

SHM_FOLDER: Final = Path("/dev/shm")  # noqa: S108 - an unlinked file of mode 0600 in it, see the note


def mib(count: int) -> str:
    """Return a number of bytes as text, in MiB."""
    return f"{count / 2**20:.1f} MiB"


def _meminfo_available(root: Path) -> int | None:
    for line in (root / "proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _cgroup_headroom(root: Path) -> list[tuple[int, str]]:
    """Return for each cgroup above this process how many bytes its limit still allows, and the file of the limit."""
    headrooms = []
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if controllers else ("memory.max", "memory.current")
        folder = base / path.lstrip("/")
        for level in (folder, *folder.parents):
            with contextlib.suppress(OSError, ValueError):  # no such file at the top, or "max": no limit
                limit = int((level / names[0]).read_text())
                used = int((level / names[1]).read_text())
                headrooms.append((limit - used, str(level / names[0])))
            if level == base:
                break
    return headrooms


def memory_left(root: Path = Path("/")) -> tuple[int, str] | None:
    """Return how many bytes may still be allocated and what sets that limit, or None if the system does not say."""
    limits = []
    with contextlib.suppress(OSError):
        available = _meminfo_available(root)
        if available is not None:
            limits.append((available, "the machine's free memory"))
    with contextlib.suppress(OSError, ValueError):
        limits.extend(_cgroup_headroom(root))
    return min(limits) if limits else None


def check_memory(size: int, what: str, left: tuple[int, str] | None) -> None:
    """Raise if `size` bytes do not fit, with the numbers."""
    if left is not None and size > left[0]:
        raise BadInput(
            f"{what} needs {mib(size)} of shared memory, but only {mib(max(left[0], 0))} can still be allocated "
            f"(limit: {left[1]}): use fewer ranks on this host, or raise the limit"
        )


def _memfd(size: int) -> int:
    descriptor = os.memfd_create("lockstep", os.MFD_CLOEXEC)
    os.fchmod(descriptor, 0o600)
    os.ftruncate(descriptor, size)
    return descriptor


def _unlinked_file(size: int, folder: Path, what: str) -> int:
    stat = os.statvfs(folder)
    room = stat.f_bavail * stat.f_frsize
    if size > room:
        raise BadInput(
            f"{what} needs {mib(size)}, but {folder} has {mib(room)} free: make it larger "
            f"(docker run --shm-size=..., or mount -o remount,size=... {folder}), or use fewer ranks on this host"
        )
    descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    os.posix_fallocate(descriptor, 0, size)
    return descriptor


def limit_of(error: OSError | ValueError) -> str:
    """Say which limit stands behind an error of the system, and how to raise it."""
    limits = {
        errno.EMFILE: "this process has too many open files: raise `ulimit -n`",
        errno.ENFILE: "the machine has too many open files: raise fs.file-max",
        errno.ENOMEM: "check `ulimit -v`",
        errno.EFBIG: "check `ulimit -f`",
    }
    return limits.get(getattr(error, "errno", None) or 0, "check `ulimit -a`")


def create(size: int, what: str, *, folder: Path | None = None) -> int:
    """Return a descriptor of new shared memory, zeroed: a memfd, or an unlinked file in `folder`."""
    check_memory(size, what, memory_left())
    try:
        if folder is None:
            with contextlib.suppress(PermissionError, AttributeError):  # a sandbox without memfd_create
                return _memfd(size)
        return _unlinked_file(size, folder or SHM_FOLDER, what)
    except OSError as error:
        raise BadInput(
            f"{what} needs {mib(size)} of shared memory, and the system refused: {error}; {limit_of(error)}"
        ) from error


def map_memory(descriptor: int, size: int, what: str) -> mmap.mmap:
    """Map a segment for reading and writing."""
    try:
        return mmap.mmap(descriptor, size)
    except (OSError, ValueError) as error:
        raise BadInput(f"{what} could not map {mib(size)}: {error}; {limit_of(error)}") from error
