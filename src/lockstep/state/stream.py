"""The whole state, tensor by tensor, from its holders to one rank or to all; nobody needs to hold all of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep.state.table import Entry, StateTable

if TYPE_CHECKING:
    from lockstep.comm.group import Group
    from lockstep.state.holdings import Holding

WINDOW = 1 << 22
"""Elements that travel at a time."""


class Window(NamedTuple):
    """Some elements of one tensor on their way."""

    entry: Entry
    """Whose."""
    start: int
    """The first, counted within the tensor."""
    stop: int
    """One past the last."""
    rank: int
    """Who holds them, by its position in the group."""
    piece: int
    """The first element of the holding that they are part of."""


def windows(table: StateTable) -> Iterator[Window]:
    """Yield the state's windows in order: by tensor, by element."""
    for entry, pieces in zip(table.entries, table.pieces, strict=True):
        for piece in pieces:
            for start in range(piece.start, piece.stop, WINDOW):
                yield Window(entry, start, min(start + WINDOW, piece.stop), piece.rank, piece.start)


def stream(group: Group, table: StateTable, holdings: Sequence[Holding]) -> Iterator[tuple[Entry, Tensor]]:
    """Yield the state on the first rank: each tensor's elements in order, as flat tensors of at most a window.

    All ranks of the group go through it to its end together; the others send what they hold and yield nothing.
    """
    held = {(one.name, one.start): one for one in holdings}
    for window in windows(table):
        if window.rank == group.rank:
            content = held[window.entry.name, window.piece].read(window.start, window.stop)
            if group.rank == 0:
                yield window.entry, content
            else:
                bits = content.to(group.device).contiguous().view(torch.uint8)
                dist.send(bits, group=group.process_group, group_dst=0)
        elif group.rank == 0:
            content = _room(window, group)
            dist.recv(content.view(torch.uint8), group=group.process_group, group_src=window.rank)
            yield window.entry, content


def gather(group: Group, table: StateTable, holdings: Sequence[Holding]) -> dict[str, Tensor]:
    """Return the whole state on every rank, for models that a rank can hold; all ranks call this together."""
    held = {(one.name, one.start): one for one in holdings}
    parts: dict[str, list[Tensor]] = {entry.name: [] for entry in table.entries}
    for window in windows(table):
        content = _room(window, group)
        if window.rank == group.rank:
            content.copy_(held[window.entry.name, window.piece].read(window.start, window.stop))
        if group.size > 1:
            dist.broadcast(content.view(torch.uint8), group=group.process_group, group_src=window.rank)
        parts[window.entry.name].append(content)
    return {entry.name: _joined(entry, parts[entry.name], group) for entry in table.entries}


def _room(window: Window, group: Group) -> Tensor:
    return torch.empty(window.stop - window.start, dtype=window.entry.dtype, device=group.device)


def _joined(entry: Entry, parts: Sequence[Tensor], group: Group) -> Tensor:
    flat = torch.cat(list(parts)) if parts else torch.empty(0, dtype=entry.dtype, device=group.device)
    return flat.view(entry.shape)
