"""Where multiprocessing keeps its sockets: a folder with a short path, which is gone when the command is.

    command                                    fork server, forked from it
    1 make the folder, private to the user
    2 start the server, the folder in a variable ----> 3 take it out of the environment
    4 end, and remove the folder                       4 the command was killed: after its last child, remove the folder

The path of a socket has at most 107 characters, so a long TMPDIR is no place for it. The server imports this module.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import process, util

VARIABLE = "LOCKSTEP_SOCKETS"
MOST_CHARACTERS = 70
"""Of the folder around it, so that `pymp-12345678/listener-12345678` still fits."""
ELSEWHERE = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - a private folder is made in one of them


def socket_folder() -> str:
    """Return the folder of this process, made if there is none; it is removed at the end of an ordinary exit."""
    config = process.current_process()._config  # type: ignore[attr-defined]
    if config.get("tempdir") is None:  # as multiprocessing itself would make it, in a folder of our choice
        config["tempdir"] = tempfile.mkdtemp(prefix="pymp-", dir=short_folder(tempfile.gettempdir()))
        util.Finalize(None, remove_folder, args=(config["tempdir"],), exitpriority=-100)
    return str(config["tempdir"])


def remove_folder(folder: str) -> None:
    """Remove a folder with its sockets; the fork server may have done so."""
    shutil.rmtree(folder, ignore_errors=True)


def short_folder(wanted: str) -> str:
    """Return a folder whose path is short enough: the one that is wanted, or another that can be written."""
    if len(os.fsencode(wanted)) <= MOST_CHARACTERS:
        return wanted
    there = (path for path in (os.environ.get("XDG_RUNTIME_DIR", ""), *ELSEWHERE) if 0 < len(path) <= MOST_CHARACTERS)
    return next((path for path in there if os.access(path, os.W_OK | os.X_OK)), wanted)


def need_sockets() -> None:
    """Make the folder now where TMPDIR is too long for sockets: multiprocessing would later make one there."""
    if short_folder(tempfile.gettempdir()) != tempfile.gettempdir():
        socket_folder()


@contextmanager
def told_to_server() -> Iterator[None]:
    """Start a fork server inside: it removes the folder if this process cannot."""
    os.environ[VARIABLE] = socket_folder()
    try:
        yield
    finally:
        del os.environ[VARIABLE]


if inherited := os.environ.pop(VARIABLE, ""):  # this is the fork server; what it forks ends without `atexit`
    atexit.register(remove_folder, inherited)
