"""Notices a host that vanishes: its link is cut or it lost power, so that nothing ever closes its connections.

    rank 0   listens; one idle connection to every other rank      1  the port and a secret go through the store
    rank r   connects, says the secret and its rank                2  kernels ask each other every second (keepalive)
                                                                   3  rank 0 tells all others whom it lost

The kernel answers for a process, so one that computes, holds the interpreter or is stopped is not taken for lost. A
process that dies closes its connection: that is not noticed here, but by whoever waits for it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import selectors
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockstep.torch_compat.distributed import Store

KEY = "lockstep/watch"
IDLE, INTERVAL, PROBES = 2, 1, 4
SECONDS = IDLE + INTERVAL * PROBES
"""After which a host that does not answer is taken for lost."""
HELLO = struct.Struct("!32sI")
HELLO_SECONDS, CONNECT_SECONDS, GATHER_SECONDS = 5.0, 20.0, 0.5
MOST_BYTES = 1 << 16
"""Of a notice."""
CLOSED = (errno.ECONNRESET, errno.EPIPE)
"""The process on the other side has ended."""


@dataclass(frozen=True)
class Vanished:
    """A host that does not answer any more."""

    host: str
    ranks: tuple[int, ...]
    """Of this world, on that host."""

    def __str__(self) -> str:
        named = f"rank{'s' if len(self.ranks) > 1 else ''} {', '.join(map(str, self.ranks))}"
        return (
            f"the host {self.host} ({named}) does not answer any more: for {SECONDS} s not even its kernel did. Its "
            "network or the machine is down"
        )


def say(lost: Vanished) -> None:
    """Print whom this process has lost."""
    print(f"lockstep: {lost}", file=sys.stderr, flush=True)  # noqa: T201


class HostWatch:
    """One rank's side; when a host has vanished it says so and ends this process."""

    def __init__(self, rank: int, hosts: Sequence[str], on_loss: Callable[[Vanished], None]) -> None:
        """`hosts`: the host of every rank."""
        self._rank, self._hosts, self._on_loss = rank, list(hosts), on_loss
        self._selector = selectors.DefaultSelector()
        self._closing = threading.Event()
        self._waker, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._run, name="lockstep watches hosts", daemon=True)

    @classmethod
    def start(
        cls, store: Store, rank: int, hosts: Sequence[str], address: str, on_loss: Callable[[Vanished], None]
    ) -> HostWatch | None:
        """Watch the hosts of all ranks; `address` is this rank's for the others. None where rank 0 is not reached."""
        watch = cls(rank, hosts, on_loss)
        if rank == 0:
            secret = secrets.token_bytes(32)
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            listener = socket.create_server((address, 0), family=family, backlog=len(hosts))
            store.set(KEY, f"{address} {listener.getsockname()[1]} {secret.hex()}")
            watch._accept(listener, secret)
        else:
            store.wait([KEY], timedelta(seconds=CONNECT_SECONDS))
            where, port, secret_text = store.get(KEY).decode().split()
            try:
                connection = socket.create_connection((where, int(port)), timeout=CONNECT_SECONDS)
                connection.sendall(HELLO.pack(bytes.fromhex(secret_text), rank))
            except OSError as error:
                print(  # noqa: T201
                    f"lockstep: rank {rank} cannot reach {where}:{port} ({error}): a host that vanishes will be "
                    "noticed only when a collective times out",
                    file=sys.stderr,
                    flush=True,
                )
                return None
            watch._add(connection, 0)
        watch._thread.start()
        return watch

    def close(self) -> None:
        """Stop watching: this rank leaves; safe to call twice."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._waker.send(b".")
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()
        self._waker.close()

    def _accept(self, listener: socket.socket, secret: bytes) -> None:
        """Take a connection of every other rank; whoever does not know the secret is sent away."""
        missing = set(range(1, len(self._hosts)))
        deadline = time.monotonic() + CONNECT_SECONDS

        def take() -> None:
            while missing and not self._closing.is_set() and time.monotonic() < deadline:
                listener.settimeout(1.0)
                with contextlib.suppress(OSError):
                    connection, _ = listener.accept()
                    connection.settimeout(HELLO_SECONDS)
                    known, rank = HELLO.unpack(connection.recv(HELLO.size, socket.MSG_WAITALL).ljust(HELLO.size))
                    if secrets.compare_digest(known, secret) and rank in missing:
                        missing.discard(rank)
                        self._add(connection, rank)
                        self._waker.send(b".")
                    else:
                        connection.close()
            listener.close()

        threading.Thread(target=take, name="lockstep takes connections", daemon=True).start()

    def _add(self, connection: socket.socket, rank: int) -> None:
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            ("TCP_KEEPIDLE", IDLE),
            ("TCP_KEEPINTVL", INTERVAL),
            ("TCP_KEEPCNT", PROBES),
            ("TCP_USER_TIMEOUT", SECONDS * 1000),
        ):
            if hasattr(socket, option):  # Linux has all of them
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        self._selector.register(connection, selectors.EVENT_READ, rank)

    def _run(self) -> None:
        while not self._closing.is_set():
            lost: set[int] = set()
            told: Vanished | None = None
            for key, _ in self._selector.select():
                connection = key.fileobj
                assert isinstance(connection, socket.socket)
                if key.data is None:
                    connection.recv(16)
                    continue
                try:
                    content = connection.recv(MOST_BYTES)
                    told = self._read(content) or told
                    gone = not content
                except OSError as error:
                    gone = True
                    if error.errno not in CLOSED:
                        lost.add(key.data)
                if gone:
                    self._selector.unregister(connection)
                    connection.close()
            if (lost or told) and not self._closing.is_set():
                self._end(told or self._whose(lost))

    def _whose(self, ranks: set[int]) -> Vanished:
        host = self._hosts[min(ranks)]
        return Vanished(host.partition("/")[0], tuple(r for r, other in enumerate(self._hosts) if other == host))

    def _read(self, content: bytes) -> Vanished | None:
        """Return whom rank 0 has lost, from its notice."""
        if self._rank == 0 or not content:
            return None
        with contextlib.suppress(ValueError, IndexError, TypeError):
            return self._whose({int(json.loads(content)["rank"])})
        return None

    def _end(self, lost: Vanished) -> None:
        """Tell the others, say it here, and end: what this process waits for would not come for half an hour."""
        if self._rank == 0:
            for key in list(self._selector.get_map().values()):
                if key.data is not None and key.data not in lost.ranks:
                    with contextlib.suppress(OSError):
                        key.fileobj.send(json.dumps({"rank": lost.ranks[0]}).encode())  # type: ignore[union-attr]
            time.sleep(GATHER_SECONDS)  # so that the others hear it before this process is missed
        try:
            self._on_loss(lost)
        finally:
            os._exit(1)
