"""The kernel's side of a run: start the starter, pass on what is printed, and end everything at an interrupt.

1  start it, in a session of its own; an interrupt that comes meanwhile waits until there is something to end
2  send the request
3  until it ends: pass on rank 0's output, take its messages, look how far the run is
4  interrupt: pass it on; whatever is left after a few seconds, or at a second interrupt, is killed

The starter and its workers are in one session, and no worker outlives the starter: see launch/parent_death.py.
"""

from __future__ import annotations

import codecs
import contextlib
import math
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from lockstep.launch.rank_output import FOLDER
from lockstep.notebook.starter_messages import Message, StarterRequest

if TYPE_CHECKING:
    from lockstep.notebook.screen import Screen

LOOK_SECONDS = 0.2
"""Between looks at the records of a run."""
GRACE_SECONDS = 8.0
"""For the end of all workers after an interrupt; the launchers themselves take at most five."""
CHUNK = 1 << 16


class Conversation:
    """One starter, from its start to its end; a context manager that leaves no process behind."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._process: subprocess.Popen[bytes] | None = None
        self._reader, self._writer = os.pipe()
        self._selector = selectors.DefaultSelector()
        self._tail = b""
        self._ended = self._interrupted = False
        self.messages: list[Message] = []
        """What the starter told, in order."""
        self.code: int | None = None
        """Its exit code, once it has ended."""

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, *_: object) -> None:
        with interrupts_wait():
            process = self._process
            if process is not None:
                if not self._ended or self.messages[-1:] == [] or self.messages[-1].kind != "done":
                    # All that is left of its session goes. It is waited for after that: so long its number is its own.
                    os.killpg(process.pid, signal.SIGKILL)
                self.code = process.wait()
                for pipe in (process.stdin, process.stdout, process.stderr):
                    with contextlib.suppress(OSError):  # a request that it did not read
                        _known(pipe).close()
            self._selector.close()
            os.close(self._reader)
            os.close(self._writer)

    def run(self, request: StarterRequest, look: Callable[[], None], hear: Callable[[Message], None]) -> None:
        """Send the request and wait for the end. `look` is called again and again.

        At an interrupt all workers are ended, and KeyboardInterrupt is raised.
        """
        try:
            with interrupts_wait():
                process = self._process = _start(request, self._writer)
            self._send(process, request)
            self._listen(process, look, hear)
        except KeyboardInterrupt:
            self._interrupted = True
            if self._process is not None:
                os.kill(self._process.pid, signal.SIGINT)
                self._listen(self._process, lambda: None, lambda message: None, time.monotonic() + GRACE_SECONDS)
            raise

    def _send(self, process: subprocess.Popen[bytes], request: StarterRequest) -> None:
        with contextlib.suppress(BrokenPipeError):  # it ended at once: its exit code says so
            _known(process.stdin).write(msgspec.json.encode(request))
            _known(process.stdin).close()

    def _listen(
        self,
        process: subprocess.Popen[bytes],
        look: Callable[[], None],
        hear: Callable[[Message], None],
        until: float = math.inf,
    ) -> None:
        """Pass on output and messages until the starter has ended, or until a time."""
        with contextlib.closing(_PidFile(process.pid)) as ended:
            sinks = self._sinks(process, hear)
            sources: tuple[int | _PidFile, ...] = (*sinks, ended)
            for source in sources:
                self._selector.register(source, selectors.EVENT_READ)
            try:
                while not self._ended and time.monotonic() < until:
                    ready = {key.fileobj for key, _ in self._selector.select(LOOK_SECONDS)}
                    self._ended = ended in ready
                    self._pass_on({source: sink for source, sink in sinks.items() if source in ready})
                    look()
                if self._ended:
                    self._pass_on(sinks)  # what it wrote last; whoever else holds the pipes is not waited for
                    look()
            finally:
                for source in sources:
                    with contextlib.suppress(KeyError):
                        self._selector.unregister(source)

    def _sinks(
        self, process: subprocess.Popen[bytes], hear: Callable[[Message], None]
    ) -> dict[int, Callable[[bytes], None]]:
        out, err = (codecs.getincrementaldecoder("utf-8")(errors="replace") for _ in range(2))

        def complain(data: bytes) -> None:
            if not self._interrupted:  # then Python itself, or a worker, may say in many lines that it was
                self._screen.write(err.decode(data), error=True)

        def take(data: bytes) -> None:
            *lines, self._tail = (self._tail + data).split(b"\n")
            for line in lines:
                message = msgspec.json.decode(line, type=Message)
                self.messages.append(message)
                hear(message)

        sinks: dict[int, Callable[[bytes], None]] = {
            _known(process.stdout).fileno(): lambda data: self._screen.write(out.decode(data)),
            _known(process.stderr).fileno(): complain,
            self._reader: take,
        }
        for source in sinks:
            os.set_blocking(source, False)
        return sinks

    def _pass_on(self, sinks: dict[int, Callable[[bytes], None]]) -> None:
        """Read what is there now, and no more: a worker that prints without end must not keep an interrupt waiting."""
        for source, sink in sinks.items():
            for _ in range(16):
                try:
                    data = os.read(source, CHUNK)
                except BlockingIOError:
                    break
                if not data:
                    with contextlib.suppress(KeyError):
                        self._selector.unregister(source)
                    break
                sink(data)


class _PidFile:
    """A process that a selector can wait for."""

    def __init__(self, number: int) -> None:
        self._descriptor = os.pidfd_open(number)

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        os.close(self._descriptor)


def _known(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None  # all three are pipes
    return pipe


def _start(request: StarterRequest, writer: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "lockstep.notebook.starter", str(writer), str(os.getpid())],
        env=environment(dict(os.environ), sys.path, request.folder),
        pass_fds=[writer],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def environment(env: dict[str, str], path: list[str], folder: str) -> dict[str, str]:
    """Return the environment of the starter and its workers: the kernel's, but for what belongs to the kernel alone."""
    # What the kernel finds on its path, such as this package, its processes find too; Python's own folders they know.
    own = tuple(str(Path(prefix).absolute()) + os.sep for prefix in {sys.prefix, sys.base_prefix})
    entries = [str(Path(entry).absolute()) for entry in path if not str(Path(entry).absolute()).startswith(own)]
    plots = {"MPLBACKEND": "agg"} if env.get("MPLBACKEND", "").startswith("module:") else {}  # ipykernel's, for cells
    more = {FOLDER: folder, "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"}
    return {**env, **plots, **more, "PYTHONPATH": os.pathsep.join(entries)}


@contextlib.contextmanager
def interrupts_wait() -> Iterator[None]:
    """Let an interrupt wait until the end of the block: in the middle, nobody would know what to end."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread is interrupted
        return
    waiting: list[Any] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: waiting.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if waiting:
        raise KeyboardInterrupt
