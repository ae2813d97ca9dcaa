"""Standard output and error of a process that trains: what cannot be shown is lost, and nothing else.

A full disk, a closed descriptor, a pipe whose reader went away, a character that the encoding lacks: none of these may
end a training, so a write that fails counts as done. That holds for everything that is printed in the process, also by
a recipe or a library.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

STREAMS = {"stdout": 1, "stderr": 2}


class LossyFile(io.FileIO):
    """A descriptor whose writes never fail; it is not closed with this object."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "wb", closefd=False)
        self.lost: OSError | None = None
        """Why something could not be written, the first time."""

    def write(self, data: Any) -> int:
        """Write what can be written; say that all was."""
        size = memoryview(data).nbytes
        try:
            while (count := super().write(data)) is None:  # a descriptor that does not wait: wait for it
                select.select([], [self.fileno()], [])
        except OSError as error:
            self.lost = self.lost or error
            return size
        return count


@contextmanager
def output_may_be_lost() -> Iterator[list[LossyFile]]:
    """Let nothing that is printed inside raise; yield the files that have taken the place of standard streams.

    Streams that somebody else has put in their place, such as a notebook's, are left alone and are not among them.
    """
    before = {name: getattr(sys, name) for name in STREAMS}
    files = lose_output()
    try:
        yield files
    finally:
        for name, stream in before.items():
            if stream is not getattr(sys, name):
                getattr(sys, name).flush()
                setattr(sys, name, stream)


def lose_output() -> list[LossyFile]:
    """Let nothing that is printed raise, from now to the end of the process; return the files that are used for it."""
    open_missing()
    files = []
    for name, number in STREAMS.items():
        stream = getattr(sys, name)
        if stream is None or is_plain(stream, number):
            files.append(LossyFile(number))
            setattr(sys, name, lossy_stream(stream, files[-1]))
    return files


def lost_output(files: Sequence[LossyFile]) -> str:
    """Say why output was lost; empty if none was, or if its reader went away, who knows that."""
    errors = [file.lost for file in files if file.lost is not None and file.lost.errno != errno.EPIPE]
    return f"some output could not be written: {errors[0].strerror}" if errors else ""


def is_plain(stream: Any, number: int) -> bool:
    """Say whether a stream is what Python made for a descriptor."""
    raw = getattr(getattr(stream, "buffer", None), "raw", getattr(stream, "buffer", None))
    return isinstance(stream, io.TextIOWrapper) and isinstance(raw, io.FileIO) and raw.fileno() == number


def lossy_stream(stream: io.TextIOWrapper | None, file: LossyFile) -> io.TextIOWrapper:
    """Return a stream like another one (None: it was closed), over a file whose writes never fail."""
    buffer = io.BufferedWriter(file)
    if stream is None:
        return io.TextIOWrapper(buffer, encoding="utf-8", errors="backslashreplace")
    with contextlib.suppress(OSError):
        stream.flush()
    return io.TextIOWrapper(
        buffer,
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=stream.line_buffering or stream.write_through,  # PYTHONUNBUFFERED: no line waits for another
        write_through=stream.write_through,
    )


def open_missing() -> None:
    """Open /dev/null for each standard descriptor that is closed: the next file opened would become the output."""
    for number in (0, *STREAMS.values()):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
