"""What the whole state consists of, and who answers for which elements: known to every rank after one exchange."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from lockstep.comm.broadcast import all_gather_text
from lockstep.errors import LockstepError

if TYPE_CHECKING:
    from lockstep.comm.group import Group
    from lockstep.state.holdings import Holding


class Entry(NamedTuple):
    """One tensor of the plain state."""

    name: str
    """As the digest has it."""
    dtype: torch.dtype
    """Of its elements."""
    shape: tuple[int, ...]
    """Of the plain tensor."""

    @property
    def numel(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)


class Piece(NamedTuple):
    """Elements of a tensor that one rank answers for."""

    start: int
    """The first."""
    stop: int
    """One past the last."""
    rank: int
    """Whose, by its position in the group."""


@dataclass(frozen=True)
class StateTable:
    """The tensors of the state in name order, and the pieces of each in order; see [Note: one answer]."""

    entries: tuple[Entry, ...]
    pieces: tuple[tuple[Piece, ...], ...]


def agree(group: Group, holdings: Sequence[Holding]) -> StateTable:
    """Return the table of what all ranks of a group hold; all of them call this together."""
    mine = json.dumps([[h.name, dtype_name(h.dtype), h.shape, h.start, h.stop] for h in holdings])
    return tabulate(json.loads(text) for text in all_gather_text(mine, group))


def tabulate(ranks: Iterable[Sequence[Sequence[object]]]) -> StateTable:
    """Put the ranks' holdings (name, dtype, shape, start, stop) together; refuse gaps, overlaps and contradictions."""
    entries: dict[str, Entry] = {}
    pieces: dict[str, list[Piece]] = {}
    for rank, rows in enumerate(ranks):
        for name, dtype, shape, start, stop in rows:
            entry = Entry(str(name), getattr(torch, str(dtype)), tuple(shape))  # type: ignore[arg-type]
            if entries.setdefault(entry.name, entry) != entry:
                raise LockstepError(f"rank {rank} holds {entry}, and another rank {entries[entry.name]}")
            pieces.setdefault(entry.name, []).append(Piece(int(start), int(stop), rank))  # type: ignore[call-overload]
    for name, held in pieces.items():
        held.sort()
        _check_cover(entries[name], held)
    names = sorted(entries)
    return StateTable(tuple(entries[name] for name in names), tuple(tuple(pieces[name]) for name in names))


def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype's name without `torch.`."""
    return str(dtype).removeprefix("torch.")


def _check_cover(entry: Entry, pieces: Sequence[Piece]) -> None:
    end = 0
    for piece in pieces:
        if piece.start != end:
            kind = "twice" if piece.start < end else "not at all"
            low, high = sorted((piece.start, end))
            raise LockstepError(f"the strategy holds the elements {low} to {high} of {entry.name} {kind}")
        end = piece.stop
    if end != entry.numel:
        raise LockstepError(f"the strategy holds {end} of the {entry.numel} elements of {entry.name}")
