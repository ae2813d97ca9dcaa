"""All-gather of one row of numbers per rank: the only collective of a forward, and of a backward.

All ranks then combine the same rows in rank order, so every rank gets the same bits, on every backend. That is why the
backward gathers too: the order in which an all-reduce adds is the backend's choice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch._C._distributed_c10d import AllgatherOptions

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
        # The name changed after torch 2.12. The group's method avoids the checks of the public function.
        self._gather: Any = getattr(group, "all_gather_single", None) or group._allgather_base

    def gather(self, row: Tensor, whole: Tensor) -> None:
        """Gather all ranks' rows into `whole`, one after another."""
        work = self._gather(whole, row, self._options)
        if work is not None:
            work.wait()
