"""All-gather of one row of numbers per rank: the only collective of a forward, and of a backward.

All ranks then combine the same rows in rank order, so every rank gets the same bits, on every backend. That is why the
backward gathers too: the order in which an all-reduce adds is the backend's choice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.torch_compat.distributed import AllgatherOptions, group_all_gather

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup


class RowGather:
    """Gathers the rows of one process group by its backend."""

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group
        self.rank, self.size = group.rank(), group.size()
        self._options = AllgatherOptions()
        self._options.asyncOp = False
        self._gather = group_all_gather(group)

    def gather(self, row: Tensor, whole: Tensor) -> None:
        """Gather all ranks' rows into `whole`, one after another."""
        work = self._gather(whole, row, self._options)
        if work is not None:
            work.wait()
