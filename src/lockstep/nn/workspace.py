"""The memory that a forward and its backward need besides their results, reused in every step."""

from __future__ import annotations

from ctypes import memmove
from typing import TYPE_CHECKING, Any

import numpy
import torch

from lockstep.comm.combine import quiet_context
from lockstep.nn.batchnorm_math import UnitStatistics, vector_of

if TYPE_CHECKING:
    from torch import Tensor

    from lockstep.nn.batchnorm_math import Vector
    from lockstep.nn.row_gather import RowGather

HEADER = 2
"""Elements before a row's vectors; their first 8 bytes are the count, as an integer."""
EVALUATING = -1
"""The count of a rank that is in evaluation mode."""


class Workspace:
    """Vectors of one layer and their views; a name that ends in `_` is a tensor, see [Note: arrays].

    Each rank has one row:    | count | mean or sum of grad | variance or sum of grad * normalised x |
    """

    def __init__(self, channels: int, like: tuple[torch.dtype, torch.device], rows: RowGather) -> None:
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
        """1 / deviation and weight / deviation, computed by a forward for its backward."""
        self.unit = UnitStatistics(self.row_.new_zeros(channels), self.row_.new_ones(channels))
        self.quiet = quiet_context()
        """The context for the arithmetic: numpy would warn of an overflow, BatchNorm does not."""

    def put(self, first: Tensor, second: Tensor) -> None:
        """Write two vectors into the own row."""
        if first.is_cpu and first.dtype == self.row_.dtype:  # the fastest way, see [Note: few operators]
            at, size = self._own_.data_ptr(), first.nbytes
            memmove(at, first.data_ptr(), size)
            memmove(at + size, second.data_ptr(), size)
        else:
            torch.stack((first, second), out=self._own_)


class VectorViews:
    """Views of tensors that live for many steps, as vectors: made once, and again if a tensor is replaced or moved."""

    def __init__(self) -> None:
        self._views: dict[str, tuple[Tensor, int, Vector]] = {}

    def vector(self, name: str, tensor: Tensor) -> Vector:
        """Return a tensor as a vector of the same memory."""
        view = self._views.get(name)
        # The entry keeps the memory alive, so the same address is the same memory.
        if view is None or view[0] is not tensor or view[1] != tensor.data_ptr():
            view = self._views[name] = (tensor, tensor.data_ptr(), vector_of(tensor))
        return view[2]


class Lease:
    """A workspace in use. It returns to its layer when the graph that needs it is freed, not before.

    [Note: workspace lifetime] A layer may run several times before its backward, and a graph may be used for two
    backwards. So a workspace is free neither at the next forward nor at the end of a backward, but when the node of
    the graph that holds the lease is freed.
    """

    __slots__ = ("pool", "space")

    def __init__(self, space: Workspace, pool: list[Workspace]) -> None:
        self.space, self.pool = space, pool

    def __del__(self) -> None:
        self.pool.append(self.space)
