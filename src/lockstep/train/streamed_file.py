"""A file of tensors that several ranks hold: they send what they hold, and rank 0 writes it as it comes.

1  rank 0 writes the header
2  the holders send the tensors, a window at a time, and rank 0 writes each as it comes
3  rank 0 puts the file in place and says how that went; nobody goes on before
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from lockstep.comm.broadcast import broadcast_text
from lockstep.errors import LockstepError
from lockstep.state.stream import stream
from lockstep.state.table import StateTable, dtype_name
from lockstep.train.records import CannotWrite
from lockstep.train.tensor_file import as_bytes

if TYPE_CHECKING:
    from lockstep.comm.group import Group
    from lockstep.state.holdings import Holding
    from lockstep.train.tensor_file import TensorDraft


def write_streamed(
    group: Group, table: StateTable, holdings: Sequence[Holding], begin: Callable[[], TensorDraft]
) -> None:
    """Write what the ranks of a group hold, whole or not at all; all of them call this together.

    `begin` makes the draft on rank 0. What rank 0 is refused is raised on every rank.
    """
    draft: TensorDraft | None = None
    refused: LockstepError | None = None
    try:
        if group.rank == 0:
            try:
                draft = begin()
            except LockstepError as error:
                refused = error
        for entry, window in stream(group, table, holdings):  # to its end even after a failure: all ranks are in it
            if draft is not None and refused is None:
                refused = _error_of(partial(draft.add, entry.name, as_bytes(window)))
        if draft is not None and refused is None:
            refused = _error_of(draft.finish)
    finally:
        if draft is not None:
            draft.drop()
    reason = broadcast_text(str(refused or ""), group)
    if reason:
        raise refused or CannotWrite(reason)


def rows(table: StateTable) -> list[tuple[str, str, tuple[int, ...]]]:
    """Return the names, dtypes and shapes of a table's tensors, as a draft wants them."""
    return [(entry.name, dtype_name(entry.dtype), entry.shape) for entry in table.entries]


def _error_of(work: Callable[[], None]) -> CannotWrite | None:
    try:
        work()
    except CannotWrite as error:
        return error
    return None
