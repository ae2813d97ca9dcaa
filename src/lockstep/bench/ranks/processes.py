"""Starting the ranks of a benchmark: fresh processes, one thread each, gloo on the loopback.

   command                          ranks
1  make a folder, start the ranks   read the plan from their argument
2  wait for every end               measure; rank 0 tells its phases through a pipe
3                                   rank 0 writes result.json; one that fails writes failed-N.json
4  pass on what ranks printed, return rank 0's result; or, at the first failure,
   end the others and raise one error with the traceback of the first cause
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from lockstep.bench.ranks.rank import PHASES, RESULT, THREADS, Note, note_of
from lockstep.bench.ranks.tracebacks import first_traceback
from lockstep.errors import RunFailed
from lockstep.launch.parent_death import die_with_parent
from lockstep.train.failure import how_it_ended

Tell = Callable[[str], None]
RANK_SECONDS = 900.0
GRACE_SECONDS = 5.0
"""How long to wait for the cause, after a rank that only lost contact with another."""


class TooLong(RunFailed):
    """The ranks did not end in time."""


def run_ranks(
    module: str,
    workers: int,
    plan: Mapping[str, Any],
    *,
    environment: Mapping[str, str] | None = None,
    tell: Tell = lambda _: None,
    where: Callable[[int], Sequence[str]] = lambda _: (),
) -> Any:
    """Run a module once per rank with the plan as its argument; return what rank 0 measured.

    `where` returns the words before a rank's command that take it to another host.
    """
    with tempfile.TemporaryDirectory() as name, Phases(tell) as phases:
        folder = Path(name)
        # The opponent's best: its own device on loopback.
        variables = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": str(THREADS), **(environment or {})}
        with Ranks(folder) as ranks:
            for rank in range(workers):
                own = {"rank": rank, "workers": workers, "folder": name, PHASES: phases.sink if rank == 0 else None}
                command = [*where(rank), sys.executable, "-m", module, json.dumps({**plan, **own})]
                ranks.start(command, variables, pass_fds=(phases.sink,) if rank == 0 else ())
            failed = ranks.wait(RANK_SECONDS)
        if failed:
            raise RunFailed(_report(ranks, workers, failed))
        ranks.pass_on()
        return json.loads((folder / RESULT).read_text())


class Phases:
    """A pipe through which rank 0 tells the command what it begins."""

    def __init__(self, tell: Tell) -> None:
        self._source, self.sink = os.pipe()
        self._thread = threading.Thread(target=self._read, args=(tell,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Tell what is left; the ranks have ended, so nobody else holds the other end."""
        os.close(self.sink)
        self._thread.join()

    def _read(self, tell: Tell) -> None:
        with open(self._source, encoding="utf-8") as lines:
            for line in lines:
                tell(line.rstrip("\n"))


class Ranks:
    """Processes, and a thread for each that waits for its end: the command sleeps while they measure."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._waiting: list[threading.Thread] = []
        self._ended: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave no process and no thread."""
        for process in self._processes:
            process.kill()
        for thread in self._waiting:
            thread.join()

    def start(
        self, command: list[str], environment: Mapping[str, str] | None = None, pass_fds: Sequence[int] = ()
    ) -> None:
        """Start the next rank. What it prints goes to a file, so that no pipe can fill up."""
        rank = len(self._processes)
        with self._output(rank).open("wb") as sink:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                preexec_fn=die_with_parent,
                pass_fds=pass_fds,
            )
        self._processes.append(process)
        thread = threading.Thread(target=lambda: self._ended.put((rank, process.wait())), daemon=True)
        self._waiting.append(thread)
        thread.start()

    def wait(self, seconds: float) -> dict[int, int]:
        """Wait for all ranks, or for the first that fails and its cause; return exit codes other than 0, in order."""
        failed: dict[int, int] = {}
        limit = time.monotonic() + seconds
        for _ in self._processes:
            try:
                rank, code = self._ended.get(timeout=max(0.0, limit - time.monotonic()))
            except queue.Empty:
                if failed:
                    break
                raise TooLong(f"no end after {seconds:.0f} s") from None
            if code:
                failed[rank] = code
                note = note_of(self.folder, rank)
                if note is None or not note.lost_contact:
                    break
                limit = min(limit, time.monotonic() + GRACE_SECONDS)
        return failed

    def printed(self, rank: int) -> str:
        """Return what a rank wrote to its output and error streams."""
        return self._output(rank).read_text(errors="replace").strip()

    def pass_on(self) -> None:
        """Show what ranks printed: a warning of a library is for the user to read."""
        for rank in range(len(self._processes)):
            for line in self.printed(rank).splitlines():
                sys.stderr.write(f"rank {rank}: {line}\n")

    def _output(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.txt"


def _report(ranks: Ranks, workers: int, failed: Mapping[int, int]) -> str:
    """Return one message on the first cause: a rank that raised, else one that died, else one that lost contact."""
    notes = {rank: note_of(ranks.folder, rank) for rank in range(workers)}
    raised = [note for note in notes.values() if note is not None and not note.lost_contact]
    if raised:
        return _words(min(raised, key=lambda note: note.time), workers)
    silent = [rank for rank in failed if notes[rank] is None]
    if silent:
        printed = first_traceback(ranks.printed(silent[0]))
        return f"rank {silent[0]} of {workers} failed: {how_it_ended(failed[silent[0]])}\n{printed}".rstrip()
    lost = [note for note in notes.values() if note is not None]
    return _words(min(lost, key=lambda note: note.time), workers)


def _words(note: Note, workers: int) -> str:
    return f"rank {note.rank} of {workers} failed:\n{note.traceback}"
