"""Every rank's row of numbers on every rank: the one exchange of each direction.

All ranks then combine the same rows in the same order, so every rank, and every backend, gets the same bits. That is
why the backward gathers too: what an all-reduce adds first is the backend's choice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch._C._distributed_c10d import AllgatherOptions

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup


class Rows:
    """The rows of one process group, gathered by its backend."""

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group
        self.rank, self.size = group.rank(), group.size()
        self._options = AllgatherOptions()
        self._options.asyncOp = False
        # The name changed after torch 2.12. The group's method spares the checks of the public function.
        self._gather: Any = getattr(group, "all_gather_single", None) or group._allgather_base

    def exchange(self, row: Tensor, whole: Tensor) -> None:
        """Send the own row and wait for the others'; `whole` gets them all, one after another."""
        work = self._gather(whole, row, self._options)
        if work is not None:
            work.wait()
