"""Workers anywhere, over the collectives of a torch.distributed backend."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep.comm.group import Group
from lockstep.exchange.base import Exchange

SlicesOnTheWay = list[tuple[dist.Work, dict[int, Tensor]]]
"""Of each turn of an exchange, its work, and where the slice of each sender comes in."""


class Collective(Exchange):
    """Workers anywhere, on any torch.distributed backend: the bandwidth of an all-reduce, no sum in the collective."""

    shares_memory = False

    def __init__(self, lanes: int, group: Group, why: str = "", *, in_turn: bool = False) -> None:
        super().__init__(lanes, group.size, group.rank, in_turn=in_turn)
        self.name = f"collectives over {group.backend}" + (f" ({why})" if why else "")
        self._group = group.process_group

    def weights(self, numel: int, dtype: torch.dtype, device: str) -> Tensor:
        """Return this worker's own buffer."""
        return torch.zeros(numel, dtype=dtype, device=device)

    def partials(self, numel: int, dtype: torch.dtype, device: str) -> list[Tensor]:
        """Return own buffers."""
        return [torch.zeros(numel, dtype=dtype, device=device) for _ in self.nodes]

    def barrier(self) -> None:
        """Nothing: the collectives themselves wait."""

    def mean(self, partials: Sequence[Tensor], part: range, weight: float) -> Tensor:
        """Exchange slices, then add up what came.

        Only slices of equal length can be asked for: every worker asks for its own at the same time.
        """
        return self.finish(self.start(partials, part), weight)

    def start(self, partials: Sequence[Tensor], part: range) -> SlicesOnTheWay:
        """Begin to exchange slices; the partials must stay as they are until `finish`."""
        length, turns = len(part), []
        for turn in range(self.most):
            senders = [rank for rank, count in enumerate(self._counts) if turn < count]
            sends = length if turn < len(partials) else 0
            inbox = partials[0].new_empty(length * len(senders))
            outbox = partials[turn][: length * self.workers] if sends else partials[0][:0]
            work = dist.all_to_all_single(
                inbox,
                outbox,
                [length if rank in senders else 0 for rank in range(self.workers)],
                [sends] * self.workers,
                group=self._group,
                async_op=True,
            )
            assert work is not None
            turns.append((work, dict(zip(senders, inbox.view(len(senders), length), strict=True))))
        return turns

    def finish(self, slices: SlicesOnTheWay, weight: float) -> Tensor:
        """Wait for slices, add them up in the order of the tree, and divide."""
        for work, _ in slices:
            work.wait()
        parts = [slices[turn][1][rank] for rank, count in enumerate(self._counts) for turn in range(count)]
        return self._add_up(parts, self._plan, weight)

    def broadcast_weights(self, flat: Tensor) -> None:
        """Rank 0 wins."""
        dist.broadcast(flat, group=self._group, group_src=0)

    def whole_gradient(self, partials: Sequence[Tensor], reduced: Tensor) -> Tensor | None:
        """Gather the slices: every worker has weights of its own to update."""
        flat = torch.empty_like(partials[0])
        dist.all_gather(list(torch.split(flat, reduced.numel())), reduced, group=self._group)
        return flat

    def sum_disjoint(self, numbers: Tensor) -> Tensor:
        """Add up: a number and zeros are exact in any order."""
        dist.all_reduce(numbers, group=self._group)
        return numbers

    def gather_weights(self, flat: Tensor) -> None:
        """Gather the slices that each worker updated."""
        length = flat.numel() // self.workers
        mine = flat[self.rank * length : (self.rank + 1) * length].clone()
        dist.all_gather(list(torch.split(flat, length)), mine, group=self._group)
