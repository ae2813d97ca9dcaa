"""The memory that one forward and its backward need besides their results, kept from step to step."""

from __future__ import annotations

from ctypes import memmove
from typing import TYPE_CHECKING, Any

import numpy
import torch

from lockstep.comm.combine import quiet_context
from lockstep.nn.batchnorm_math import Unit, vector_of

if TYPE_CHECKING:
    from torch import Tensor

    from lockstep.nn.batchnorm_math import Vector
    from lockstep.nn.row_gather import Rows

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
        self._own_ = self.row_[HEADER:].view(2, channels)
        self.own = vector_of(self._own_)
        self.pairs = [vector_of(row[HEADER:].view(2, channels)) for row in table]
        merged = self.row_.new_zeros(2, channels)
        self.merged, (self.mean_, self.variance_) = vector_of(merged), merged
        scratch = self.row_.new_zeros(4, channels)
        self.scratch, self.scratch_ = list(vector_of(scratch)), list(scratch)
        self.scratch_pairs = vector_of(scratch)[:2], vector_of(scratch)[2:]
        factors = self.row_.new_zeros(2, channels)
        (self.inverse, self.scale), self.scale_ = vector_of(factors), factors[1]
        """1 / deviation and weight / deviation, from a forward for its backward."""
        self.unit = Unit(self.row_.new_zeros(channels), self.row_.new_ones(channels))
        self.quiet = quiet_context()
        """Runs what computes here: numpy warns of an overflow, BatchNorm does not."""

    def put(self, first: Tensor, second: Tensor) -> None:
        """Write two vectors into the own row."""
        if first.is_cpu and first.dtype == self.row_.dtype:  # the shortest way there, see [Note: few ways]
            at, size = self._own_.data_ptr(), first.nbytes
            memmove(at, first.data_ptr(), size)
            memmove(at + size, second.data_ptr(), size)
        else:
            torch.stack((first, second), out=self._own_)


class Seen:
    """Tensors that stay from step to step, seen as vectors: made once, and anew if one is replaced or moves."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Tensor, int, Vector]] = {}

    def vector(self, name: str, tensor: Tensor) -> Vector:
        """Return a tensor as a vector of the same memory."""
        kept = self._kept.get(name)
        # What is kept holds on to its memory, so the same address is the same memory.
        if kept is None or kept[0] is not tensor or kept[1] != tensor.data_ptr():
            kept = self._kept[name] = (tensor, tensor.data_ptr(), vector_of(tensor))
        return kept[2]


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
