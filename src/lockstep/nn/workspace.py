"""The memory that one forward and its backward need besides their results, kept from step to step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from lockstep.nn.rows import Rows

HEADER = 2
"""Words before a row's vectors; the first 8 bytes are the count, as an integer."""
EVALUATING = -1
"""The count of a rank that is in evaluation mode."""


class Workspace:
    """Vectors of one layer, with their views made once.

    A row, of which each rank has one:    | count | mean or sum of grad | variance or sum of grad * normalised x |
    """

    def __init__(self, channels: int, like: tuple[torch.dtype, torch.device], rows: Rows) -> None:
        dtype, device = like
        self.key = (channels, dtype, device, rows)
        words = HEADER + 2 * channels
        self.whole = torch.zeros(rows.size * words, dtype=dtype, device=device)
        table = self.whole.view(rows.size, words)
        self.row = torch.zeros(words, dtype=dtype, device=device)
        self.count, self.counts = _integers(self.row.view(1, -1)), _integers(table)
        own = self._vectors(self.row)
        self.own = own[0], own[1]
        self.pairs = [self._vectors(part) for part in table.unbind()]
        self.means = [pair[0] for pair in self.pairs]
        self.variances = [pair[1] for pair in self.pairs]
        vectors = torch.zeros(5, channels, dtype=dtype, device=device)
        self.mean, self.variance, *self.scratch = vectors.unbind()
        self.zero, self.one = vectors.new_zeros(channels), vectors.new_ones(channels)

    @staticmethod
    def _vectors(row: Tensor) -> Tensor:
        return row[HEADER:].view(2, -1)


def _integers(rows: Tensor) -> Any:
    """Return the count of each row, to be assigned and listed; an array on the CPU, where it is ten times faster."""
    column = rows.view(torch.int64)[:, 0]
    return column.numpy() if column.is_cpu else column


class Lease:
    """A workspace in use. It goes back to its layer when the graph that needs it is gone, not before.

    [Note: workspace lifetime] A layer may be run several times before its backward, and a graph may be walked
    twice. So neither the next forward nor the end of a backward says that a workspace is free; the end of the
    graph's node, which holds the lease, does.
    """

    __slots__ = ("pool", "space")

    def __init__(self, space: Workspace, pool: list[Workspace]) -> None:
        self.space, self.pool = space, pool

    def __del__(self) -> None:
        self.pool.append(self.space)
