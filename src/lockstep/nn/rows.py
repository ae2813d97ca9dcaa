"""Every rank's row of numbers on every rank: the one exchange of each direction.

    a backend with a collective     one all-gather
    gloo                            1 every rank posts its receives, before it computes its row
                                    2 it sends its row to each of the others
                                    3 it waits for theirs

gloo's collectives pass through two more threads than its messages do: sent directly, small rows take half the
time. All ranks then combine the same rows in the same order, so every rank, and every backend, gets the same bits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor
    from torch.distributed import ProcessGroup

TAG = 0x5B_A7C4
"""Of the messages; far from the small numbers that people choose."""


class Rows(ABC):
    """How the rows of one process group are exchanged."""

    in_place: bool
    """Whether a rank's own row must be its part of the result."""

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group
        self.rank, self.size = group.rank(), group.size()

    @abstractmethod
    def post(self, parts: Sequence[Tensor]) -> None:
        """Say where the others' rows will go; called before the own row is computed."""

    @abstractmethod
    def exchange(self, row: Tensor, whole: Tensor) -> None:
        """Send the own row and wait for the others'; `whole` holds the parts, one after another."""


class GatheredRows(Rows):
    """By the backend's own all-gather."""

    in_place = False

    def __init__(self, group: ProcessGroup) -> None:
        super().__init__(group)
        self._options = AllgatherOptions()
        self._options.asyncOp = False
        # The name changed after torch 2.12. The group's method spares the checks of the public function.
        self._gather: Any = getattr(group, "all_gather_single", None) or group._allgather_base

    def post(self, parts: Sequence[Tensor]) -> None:
        """Do nothing: a collective needs no notice."""

    def exchange(self, row: Tensor, whole: Tensor) -> None:
        """Gather."""
        work = self._gather(whole, row, self._options)
        if work is not None:
            work.wait()


class DirectRows(Rows):
    """By messages from each to each."""

    in_place = True

    def __init__(self, group: ProcessGroup) -> None:
        super().__init__(group)
        self._others = [rank for rank in range(self.size) if rank != self.rank]
        self._posted: list[Any] = []

    def post(self, parts: Sequence[Tensor]) -> None:
        """Post the receives, so that the data needs no second look at the receiver."""
        self._posted = [self.group.recv([parts[rank]], rank, TAG) for rank in self._others]

    def exchange(self, row: Tensor, whole: Tensor) -> None:
        """Send and wait."""
        works = [self.group.send([row], rank, TAG) for rank in self._others]
        works += self._posted
        for work in works:
            work.wait()


def rows_of(group: ProcessGroup) -> Rows:
    """Return the faster way of this group's backend."""
    return DirectRows(group) if dist.get_backend(group) == dist.Backend.GLOO else GatheredRows(group)
