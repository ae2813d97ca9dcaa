"""How ranks meet without torch: each tells all others one message, and stays connected, so that a death is noticed.

    rank 0                                        rank r
    1 listen                                      1 connect, again and again until rank 0 is there
    2 read the hello, say which job this is <---> 2 hello: job, rank, size, message
    3 all are there: send all messages  --------> 3 read them         (or why not: then every rank raises that)
    4 watch all connections  <------------------> 4 watch the connection
      one is closed, and its rank had not said that it leaves: tell the others who it was

meeting_point.py says where. Messages are lines of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lockstep.errors import BadInput, LockstepError
from lockstep.world.addresses import is_loopback
from lockstep.world.meeting_point import (
    ANSWER_SECONDS,
    MeetingPoint,
    connections,
    keep_alive,
    listen,
    meeting_point,
    same_user,
)

if TYPE_CHECKING:
    from lockstep.world.place import Place

Message = dict[str, Any]
Check = Callable[[list[Message]], str | None]
"""Looks at all messages, on rank 0; returns why the ranks cannot work together, or None."""

MOST_BYTES = 1 << 16
"""Of a line."""


class Connection:
    """Lines of JSON to and from one rank."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self.rank = -1
        self._buffer = b""

    def send(self, message: Message) -> None:
        """Send one line; a rank that is gone gets none."""
        with contextlib.suppress(OSError):
            self.socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> Iterator[Message | None]:
        """Read what is there; yield each whole line, and None where the other end is closed or sends no such lines."""
        try:
            data = self.socket.recv(MOST_BYTES)
        except OSError:
            data = b""
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            message = _decoded(line)
            yield message
            if message is None:
                return
        if not data or len(self._buffer) > MOST_BYTES:
            yield None

    def wait(self, deadline: float) -> Message | None:
        """Wait for one line; None if the other end is closed, raises TimeoutError after the deadline."""
        while True:
            self.socket.settimeout(max(0.01, deadline - time.monotonic()))
            data = self.socket.recv(1)  # one byte at a time: what comes after the line is for the watch
            self._buffer += data
            if not data or len(self._buffer) > MOST_BYTES:
                return None
            if data == b"\n":
                line, self._buffer = self._buffer, b""
                return _decoded(line)

    def close(self) -> None:
        """Close it; safe to call twice."""
        with contextlib.suppress(OSError):
            self.socket.close()


def _decoded(line: bytes) -> Message | None:
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) else None


class Meeting:
    """All ranks' messages, and the connections over which deaths are noticed.

    Ranks part together: a rank that is done says so, and goes when all have. Whoever left early would take away what
    the others still read from it, as in the last all-reduce.

    rank 0                                        rank r
    1 done: wait until all others have said so    1 done: say so  ("left")
    2 say so  ----------------------------------> 2 wait for that, and go
    """

    def __init__(self, rank: int, messages: list[Message], connections: Sequence[Connection]) -> None:
        self.messages = messages
        """By rank."""
        self._rank = rank
        self._connections = {one.rank: one for one in connections}
        self._left: set[int] = set()
        self._over = threading.Event()
        """All others have left, or, on another rank than 0, rank 0 has."""
        self._silent = False
        self._watched = False

    def watch(self, lost: Callable[[int], None], left: Callable[[int], None] = lambda _: None) -> None:
        """Call `lost(rank)` in a thread when a rank ends without a word, and `left(rank)` when it says that it is done.

        Rank 0 hears of every rank; the others hear of every death, and of the leave of rank 0.
        """
        self._watched = True
        threading.Thread(target=self._watch, args=(lost, left), name="lockstep meeting", daemon=True).start()

    def leave(self, *, done: bool = True, wait: bool = True) -> None:
        """Say that this rank is done, and wait for the others; not `done`: they lose it at once. Safe to call twice."""
        if self._silent:
            return
        if done and self._rank == 0 and wait and self._watched:
            self._over.wait()
        if done:
            for one in self._connections.values():
                one.send({"left": self._rank})
        if done and self._rank != 0 and wait and self._watched:
            self._over.wait()
        self._silent = True
        for one in self._connections.values():
            with contextlib.suppress(OSError):
                one.socket.shutdown(socket.SHUT_RDWR)  # wakes the watch, which closes it
            if not self._watched:
                one.close()

    def _watch(self, lost: Callable[[int], None], left: Callable[[int], None]) -> None:
        with selectors.DefaultSelector() as selector:
            for one in self._connections.values():
                one.socket.settimeout(None)
                selector.register(one.socket, selectors.EVENT_READ, one)
            while selector.get_map():
                for key, _ in selector.select():
                    for message in key.data.receive():
                        self._heard(key.data, message, lost, left)
                        if message is None:
                            selector.unregister(key.data.socket)
        self._over.set()
        for one in self._connections.values():
            one.close()

    def _heard(
        self, one: Connection, message: Message | None, lost: Callable[[int], None], left: Callable[[int], None]
    ) -> None:
        if self._silent:
            return
        if message is None:
            if one.rank not in self._left:
                for other in self._connections.values():
                    other.send({"lost": one.rank})
                lost(one.rank)
        elif "lost" in message:
            lost(int(message["lost"]))
        elif "left" in message:
            self._left.add(one.rank)
            left(one.rank)
            if self._left >= set(self._connections):
                self._over.set()


def meet(place: Place, message: Callable[[str], Message], check: Check, seconds: float) -> Meeting:
    """Tell all ranks a message and return theirs; raise the same on all ranks if one of them cannot take part.

    `message` gets the address by which the other hosts can reach this one; empty where all ranks are on one host.
    """
    point = meeting_point(place)
    deadline = time.monotonic() + seconds
    if place.rank == 0:
        return Host(point, place, message, check).gather(deadline, seconds)
    return _attend(point, place, message, deadline, seconds)


class Host:
    """Rank 0's side: collects the messages."""

    def __init__(self, point: MeetingPoint, place: Place, message: Callable[[str], Message], check: Check) -> None:
        self._point, self._place, self._message, self._check = point, place, message, check
        self._hellos: dict[int, tuple[Connection, Message]] = {}
        self._open: list[Connection] = []

    def gather(self, deadline: float, seconds: float) -> Meeting:
        """Wait for all ranks; refuse all if one of them does not fit."""
        try:
            with listen(self._point) as entrance, selectors.DefaultSelector() as selector:
                selector.register(entrance, selectors.EVENT_READ)
                while len(self._hellos) < self._place.size - 1:
                    ready = selector.select(max(0.0, deadline - time.monotonic()))
                    if not ready:
                        raise LockstepError(self._missing(seconds))
                    for key, _ in ready:
                        if key.data is None:
                            self._enter(entrance, selector)
                        else:
                            self._hear(key.data, selector)
            messages = [
                self._message(self._reached_at()),
                *(self._hellos[rank][1] for rank in range(1, self._place.size)),
            ]
            if (why := self._check(messages)) is not None:
                raise BadInput(why)
        except LockstepError as error:
            for one in self._open:
                one.send({"refused": str(error), "input": isinstance(error, BadInput)})
                one.close()
            raise
        connections = [one for one, _ in self._hellos.values()]
        for one in connections:
            one.send({"all": messages})
        return Meeting(0, messages, connections)

    def _reached_at(self) -> str:
        """Return the address at which other hosts reach this one: by its own name it may be a loopback address."""
        if self._point.name or not is_loopback(self._point.host):
            return self._point.host
        reached = (str(one.socket.getsockname()[0]) for one, _ in self._hellos.values())
        return next((address for address in reached if not is_loopback(address)), self._point.host)

    def _enter(self, entrance: socket.socket, selector: selectors.BaseSelector) -> None:
        end, _ = entrance.accept()
        if self._point.name and not same_user(end):
            end.close()
            return
        end.settimeout(ANSWER_SECONDS)
        keep_alive(end)
        one = Connection(end)
        self._open.append(one)
        selector.register(end, selectors.EVENT_READ, one)

    def _hear(self, one: Connection, selector: selectors.BaseSelector) -> None:
        for message in one.receive():
            if message is not None and one.rank < 0 and message.get("job") == self._point.job:
                self._welcome(one, message)
                continue
            selector.unregister(one.socket)
            self._open.remove(one)
            one.close()
            if one.rank >= 0:
                about = self._hellos[one.rank][1]
                raise LockstepError(
                    f"rank {one.rank} ({where(about)}) ended while the ranks met: what it printed last says why"
                )
            return

    def _welcome(self, one: Connection, hello: Message) -> None:
        rank, size, about = hello.get("rank"), hello.get("size"), hello.get("message")
        one.send({"job": self._point.job})
        if not isinstance(rank, int) or not isinstance(about, dict) or size != self._place.size:
            raise BadInput(
                f"rank {rank} says that there are {size} ranks, rank 0 that there are {self._place.size}: start all of "
                "them with the same number"
            )
        if not 0 < rank < self._place.size or rank in self._hellos:
            raise BadInput(
                f"rank {rank} of {size} is taken: two processes were started as rank {rank}. Check the ranks"
            )
        one.rank = rank
        self._hellos[rank] = (one, about)

    def _missing(self, seconds: float) -> str:
        missing = [str(rank) for rank in range(1, self._place.size) if rank not in self._hellos]
        return (
            f"waited {seconds:.0f} s for {self._place.size} ranks; missing: {', '.join(missing)}. Check that they were "
            f"started, with the same number of workers, and that they can reach rank 0 ({self._point})"
        )


def _attend(
    point: MeetingPoint, place: Place, message: Callable[[str], Message], deadline: float, seconds: float
) -> Meeting:
    """Be a rank other than 0."""
    while time.monotonic() < deadline:
        for end in connections(point):
            one = Connection(end)
            about = message("" if point.name else str(end.getsockname()[0]))
            one.send({"job": point.job, "rank": place.rank, "size": place.size, "message": about})
            try:
                known = one.wait(time.monotonic() + ANSWER_SECONDS)
                if known is None or known.get("job") != point.job:
                    one.close()
                    continue
                # Rank 0 waits as long as this rank, from when it came; then it says who is missing.
                answer = one.wait(deadline + seconds)
            except OSError:  # a time-out is one
                one.close()
                continue
            return _met(one, place, answer)
        time.sleep(0.05)
    raise LockstepError(
        f"rank {place.rank} of {place.size} found no rank 0 within {seconds:.0f} s ({point}): check that rank 0 was "
        "started, and that the hosts can reach each other"
    )


def _met(one: Connection, place: Place, answer: Message | None) -> Meeting:
    if answer is not None and "all" in answer:
        one.rank = 0
        return Meeting(place.rank, answer["all"], [one])
    one.close()
    if answer is None:
        raise LockstepError("rank 0 ended while the ranks met: what it printed last says why")
    raise (BadInput if answer.get("input") else LockstepError)(str(answer.get("refused")))


def about_this_process() -> Message:
    """Return what a message begins with: of which process it is."""
    return {"host": socket.gethostname(), "pid": os.getpid()}


def where(message: Message) -> str:
    """Say where a rank runs, of its message."""
    return f"host {message.get('host')}, process {message.get('pid')}"
