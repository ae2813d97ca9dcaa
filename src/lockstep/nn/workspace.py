"""The memory that one forward and its backward need besides their results, kept from step to step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy
import torch

from lockstep.nn.batchnorm_math import Unit, vector_of

if TYPE_CHECKING:
    from lockstep.nn.rows import Rows

HEADER = 2
"""Words before a row's vectors; the first 8 bytes are the count, as an integer."""
EVALUATING = -1
"""The count of a rank that is in evaluation mode."""


class Workspace:
    """Vectors of one layer, with their views made once; a name with `_` is a tensor, see [Note: arrays].

    A row, of which each rank has one:    | count | mean or sum of grad | variance or sum of grad * normalised x |
    """

    def __init__(self, channels: int, like: tuple[torch.dtype, torch.device], rows: Rows) -> None:
        dtype, device = like
        self.key = (channels, dtype, device, rows)
        self.xp: Any = numpy if device.type == "cpu" else torch
        words = HEADER + 2 * channels
        self.row_ = torch.zeros(words, dtype=dtype, device=device)
        self.whole_ = self.row_.new_zeros(rows.size * words)
        table = self.whole_.view(rows.size, words)
        self.count = vector_of(self.row_.view(torch.int64)[:1])
        self.counts = vector_of(table.view(torch.int64)[:, 0])
        self.own = vector_of(self.row_[HEADER:].view(2, channels))
        self.pairs = [vector_of(row[HEADER:].view(2, channels)) for row in table]
        merged = self.row_.new_zeros(2, channels)
        self.merged, (self.mean_, self.variance_) = vector_of(merged), merged
        scratch = self.row_.new_zeros(4, channels)
        self.scratch, self.scratch_ = list(vector_of(scratch)), list(scratch)
        self.scratch_pairs = vector_of(scratch)[:2], vector_of(scratch)[2:]
        self.unit = Unit(self.row_.new_zeros(channels), self.row_.new_ones(channels))


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
