"""Says which rank has not moved for how long and where it is; ends it if the user set a limit (`--stall-limit`).

A rank on another host ends by its own timer (train/stall_timer.py), soon after this process has named it.

A rank moves when it writes to its records, what it samples of its use of the machine apart. One that is stuck stops the
others too: they wait for it in a collective, and their stacks (train/stack_dump.py) say so. So of ranks that stand
still, those that do not wait are the ones to name; one that is stopped wrote no stack at all.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from lockstep.errors import BadInput
from lockstep.train.failure import leave_note, report
from lockstep.train.schema.error_json import Failure
from lockstep.train.schema.rank_jsonl import HeaderLine, header_of, rank_path, read_rank, steps_of
from lockstep.train.stack_dump import LAST_STEPS, allowed_seconds, innermost, main_stack, stack_path, waits

POLL_SECONDS = 1.0
USAGE = b'{"kind":"usage"'
"""How a line begins that tells of no move: a stuck rank samples its use of the machine too."""
GRACE_SECONDS = 2.0
"""For the ranks' own watchdogs, which are set for the same time."""
SHOWN_LINES = 30
"""Of a stack, in a report."""
STATES = {
    "T": "it is stopped (kill -CONT {pid} lets it go on)",
    "t": "a debugger holds it",
    "D": "it waits for a disk or a device",
    "R": "it computes",
    "S": "it sleeps or waits",
}
"""What the letter of a process in /proc means."""


@dataclass(frozen=True, kw_only=True)
class Still:
    """A rank that has not moved."""

    rank: int
    header: HeaderLine | None
    """Who it is; None if it has written nothing yet."""
    step: int
    """The step that it is in."""
    usual: float | None
    """Seconds of its last step; None before the first."""
    stack: str
    """The innermost call first; empty if it wrote none."""

    @property
    def here(self) -> bool:
        """Whether its process is one of this host."""
        return self.header is not None and self.header.host == socket.gethostname()


class StallWatch:
    """Watches the records of a run's ranks, on a thread of its own."""

    def __init__(self, folder: Path, ranks: int, limit: float | None, *, in_a_rank: bool = False) -> None:
        """`in_a_rank`: this process is a rank itself, which nobody here started."""
        self._folder, self._ranks, self._limit = folder, ranks, limit
        self._in_a_rank = in_a_rank
        self._moves = [Moves(rank_path(folder, rank)) for rank in range(ranks)]
        self._counts: list[int] = []
        self._moved = time.monotonic()
        self._next: float | None = None
        self._over = threading.Event()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watch until the end of the block."""
        thread = threading.Thread(target=self._watch, name="lockstep watches its ranks", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _watch(self) -> None:
        while not self._over.wait(POLL_SECONDS):
            with contextlib.suppress(OSError, BadInput):  # the folder is being moved, or a line is half written
                self.look(time.monotonic())

    def look(self, now: float) -> None:
        """Look at the records once, and act if nobody has moved for too long."""
        counts = [moves.count() for moves in self._moves]
        if counts != self._counts:
            self._counts, self._moved, self._next = counts, now, None
            return
        seconds = now - self._moved
        if self._next is None:
            self._next = self._allowed() + GRACE_SECONDS
        first = not all(counts)
        if self._limit is not None and seconds >= self._limit and not first and self._stepped():
            self._end(seconds)
        elif seconds >= self._next:
            self._next = 2 * seconds
            for one in self._culprits():
                print(f"lockstep: {told(one, seconds)}", file=sys.stderr, flush=True)  # noqa: T201

    def _allowed(self) -> float:
        steps = [line.total for line in steps_of(read_rank(rank_path(self._folder, 0)))[-LAST_STEPS:]]
        return allowed_seconds(steps, self._limit)

    def _stepped(self) -> bool:
        return bool(steps_of(read_rank(rank_path(self._folder, 0))))

    def _culprits(self) -> list[Still]:
        return culprits({rank: read_still(self._folder, rank) for rank in range(self._ranks)})

    def _end(self, seconds: float) -> None:
        """Leave a note for the first that is stuck, and end it: what started it then ends the others."""
        stuck = self._culprits()
        one = next((still for still in stuck if still.here), stuck[0])
        text = f"{told(one, seconds)}. It was ended by --stall-limit {self._limit:g}"
        if one.stack:
            text += "\nIts stack, the innermost call first:\n" + "\n".join(one.stack.splitlines()[:SHOWN_LINES])
        host = one.header.host if one.header else socket.gethostname()
        failure = Failure(rank=one.rank, host=host, step=one.step, kind="own", text=text, time=time.time())
        leave_note(self._folder, failure)
        self._over.set()
        if one.header is not None and one.here and one.header.pid != os.getpid():
            with contextlib.suppress(ProcessLookupError):
                os.kill(one.header.pid, signal.SIGKILL)
        elif one.here or self._in_a_rank:  # this very process; or one elsewhere, whose own timer ends it
            print(f"lockstep: {report(failure)}", file=sys.stderr, flush=True)  # noqa: T201
            os._exit(1)
        else:  # on another host: its launcher, which this process runs, ends it
            os.kill(os.getpid(), signal.SIGTERM)


def culprits(still: Mapping[int, Still]) -> list[Still]:
    """Return the ranks that the others wait for: of those that are behind, the ones that do not wait. Pure."""
    behind = min(one.step for one in still.values())
    ranks = [one for one in still.values() if one.step == behind]
    return [one for one in ranks if not waits(one.stack)] or ranks


def read_still(folder: Path, rank: int) -> Still:
    """Return what a rank that does not move has left so far."""
    path, stack = rank_path(folder, rank), stack_path(folder, rank)
    lines = read_rank(path) if path.is_file() else []
    steps = steps_of(lines)
    return Still(
        rank=rank,
        header=header_of(lines),
        step=steps[-1].step + 1 if steps else (0 if lines else -1),
        usual=steps[-1].total if steps else None,
        stack=main_stack(stack.read_text(errors="replace")) if stack.is_file() else "",
    )


def told(one: Still, seconds: float) -> str:
    """Say which rank has not moved for how long, and where it is."""
    who = f"rank {one.rank}"
    if one.header is not None:
        who += f" on {one.header.host} (process {one.header.pid})"
    where = f"in step {one.step}" if one.step >= 0 else "before the first step"
    usual = "" if one.usual is None else f"; its last step took {one.usual:.3g} s"
    parts = [f"{who} has not moved for {seconds:.0f} s, {where}{usual}"]
    if one.header is not None and one.here and (state := process_state(one.header.pid)):
        parts.append(state)
    if one.stack:
        parts.append(f"it is at {innermost(one.stack)} (all of it: rank-{one.rank}.stack.txt in the run folder)")
    return ". ".join(part[:1].upper() + part[1:] if number else part for number, part in enumerate(parts))


def process_state(pid: int) -> str:
    """Say what a process of this host does; empty if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    letter = text[text.rindex(")") + 2]
    return STATES.get(letter, "").format(pid=pid)


class Moves:
    """Counts the lines of a rank's records that tell of a move; reads only what is new."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._count = path, 0, 0

    def count(self) -> int:
        """Return how many there are by now."""
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < self._offset:  # another attempt began anew
                self._offset = self._count = 0
            file.seek(self._offset)
            whole, newline, _ = file.read().rpartition(b"\n")
            lines = whole.split(b"\n") if newline else []
            self._offset += len(whole) + len(newline)
            self._count += sum(not line.startswith(USAGE) for line in lines)
        return self._count
