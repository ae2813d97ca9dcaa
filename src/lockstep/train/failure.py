"""How a run failed: each rank leaves a note, and one report names the first cause.

A rank that dies takes its neighbours with it: they lose a connection and fail too, a moment later. So the
report asks, in this order: who was refused or raised on its own account, who ended without a word, and only
then who lost contact.
"""

from __future__ import annotations

import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

from lockstep.errors import BadInput, LockstepError, NotFinite, PeerLost
from lockstep.train.out_of_memory import ADVICE, KILLED, is_out_of_memory
from lockstep.train.records import CannotWrite, write_document
from lockstep.train.schema.error_json import Failure, Kind, error_path, read_failures
from lockstep.train.schema.rank_jsonl import EndLine, RankLine, header_of, rank_path, read_rank, steps_of

CONTACT_WORDS = ("connection closed by peer", "connection reset", "connection refused", "broken pipe", "gloo", "nccl")


def describe(error: BaseException, *, rank: int, step: int) -> Failure:
    """Return the note a rank leaves about an exception."""
    kind: Kind
    if isinstance(error, BadInput):
        kind, text = "input", str(error)
    elif isinstance(error, SystemExit):
        kind, text = "own", f"the training code called exit({error.code!r})\n{_trace(error)}"
    elif lost_contact(error):
        kind, text = "contact", f"{type(error).__name__}: {error}"
    elif isinstance(error, NotFinite):
        kind, text = "loss", str(error)
    elif isinstance(error, LockstepError):
        kind, text = "own", str(error)
    else:
        kind, text = "own", _trace(error)
    if is_out_of_memory(error):
        text += f"\n{ADVICE}"
    text = text.encode(errors="backslashreplace").decode()  # names of files may not be Unicode text
    return Failure(rank=rank, host=socket.gethostname(), step=step, kind=kind, text=text, time=time.time())


def lost_contact(error: BaseException) -> bool:
    """Say whether an exception only tells that another rank is gone."""
    if isinstance(error, PeerLost):
        return True
    distributed = sys.modules.get("torch.distributed")  # where it is not loaded, nobody can have raised its error
    if distributed is not None and isinstance(error, distributed.DistError):
        return True
    return type(error) is RuntimeError and any(word in str(error).lower() for word in CONTACT_WORDS)


def leave_note(folder: Path, failure: Failure) -> bool:
    """Write a rank's note; False if even that cannot be written."""
    try:
        write_document(error_path(folder, failure.rank), failure)
    except CannotWrite:
        return False
    return True


def finished(folder: Path, rank: int) -> bool:
    """Say whether a rank wrote its end line."""
    return any(isinstance(line, EndLine) for line in _written(folder, rank)[-1:])


def first_cause(
    folder: Path, workers: int, exits: Mapping[int, int], hosts: Mapping[int, str] | None = None
) -> Failure:
    """Return the failure that the others follow from.

    `exits` holds the exit codes that the launcher knows, the first failure first; `hosts` where it said that ranks ran.
    """
    notes = read_failures(folder)
    if (cause := first_note(folder)) is not None:
        return cause
    heard = {note.rank for note in notes}
    silent = [rank for rank in range(workers) if rank not in heard and not finished(folder, rank)]
    silent.sort(key=lambda rank: list(exits).index(rank) if rank in exits else len(exits))
    if silent:
        return _silent(folder, silent, exits, hosts or {})
    if notes:
        return notes[0]
    return Failure(rank=0, host=socket.gethostname(), step=-1, kind="own", text="the launcher failed", time=time.time())


def first_note(folder: Path) -> Failure | None:
    """Return the earliest note of a rank that was refused, or failed on its own account."""
    notes = read_failures(folder)
    of_kind = (note for kinds in (("input",), ("own", "loss")) for note in notes if note.kind in kinds)
    return next(of_kind, None)


def report(failure: Failure, steps: int | None = None, *, counts_steps: bool = True) -> str:
    """Return the report for one screen; `steps` is the number of steps of the run, if it is known.

    A user's own function does not tell its steps: it does not count them.
    """
    where = f" at step {failure.step}" if failure.step >= 0 else " before the first step"
    where = where if counts_steps else ""
    if steps is not None and failure.step >= steps:
        where = f" after step {steps} of {steps}"
    if failure.kind == "input":
        return failure.text
    what = "lost contact with another rank" if failure.kind == "contact" else "failed"
    return f"rank {failure.rank} on {failure.host} {what}{where}:\n{failure.text}"


def how_it_ended(code: int) -> str:
    """Put an exit code into words; negative means a signal, as in Python's subprocess."""
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = "unknown"
        hint = f" ({KILLED})" if -code == signal.SIGKILL else ""
        return f"the process was killed by signal {-code}, {name}{hint}"
    return f"the process exited with code {code} before the run was done"


def _written(folder: Path, rank: int) -> list[RankLine]:
    """Return what a rank wrote before it ended: nothing, if it died at once or the disk was full."""
    path = rank_path(folder, rank)
    try:
        return read_rank(path) if path.is_file() else []
    except BadInput:  # the report on a failure must come, whatever happened to the records
        return []


def _silent(folder: Path, ranks: Sequence[int], exits: Mapping[int, int], hosts: Mapping[int, str]) -> Failure:
    """Return the failure of the first of the ranks that left no note; the launcher may have ended the others."""
    rank, *others = ranks
    lines = _written(folder, rank)
    steps, header = steps_of(lines), header_of(lines)
    host = header.host if header else hosts.get(rank, socket.gethostname())
    text = how_it_ended(exits[rank]) if rank in exits else "the process ended without a word"
    if others:
        text += f"\nrank {', '.join(map(str, others))} left no note either: it was ended because of this, or went first"
    # A line is written when a step is done, so the one that was being computed is the next.
    step = steps[-1].step + 1 if steps else (0 if lines else -1)
    return Failure(rank=rank, host=host, step=step, kind="silent", text=text, time=time.time())


def _trace(error: BaseException) -> str:
    """Format a traceback without the frames of the loop itself: the reader's own code is what counts."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/lockstep/" not in frame.filename.replace("\\", "/")]
    lines = traceback.format_list(own or frames) + traceback.format_exception_only(error)
    return "Traceback (most recent call last):\n" + "".join(lines).rstrip()
