"""A SyncBatchNorm whose other rank has the same samples, in one process."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lockstep.nn import SyncBatchNorm


class Pair:
    """A group of two."""

    def size(self) -> int:
        return 2


class Echo:
    """The rows of a group of two, of which the second is the first's."""

    rank, size = 0, 2

    def __init__(self, group: Any) -> None:
        self.group = group

    def gather(self, row: Tensor, whole: Tensor) -> None:
        whole.view(2, -1).copy_(row)


def echoing(channels: int, **options: Any) -> Any:
    """Return such a layer."""
    layer: Any = SyncBatchNorm(channels, group=Pair(), **options)  # type: ignore[arg-type]
    layer._rows = Echo(layer.group)
    return layer
