"""Ranks whose data run out at different times: those that are done take part, with nothing to add.

The protocol is torch's (`torch.distributed.algorithms.Join`), so that it also works together with others that join:

    a rank with data, before a forward                      a rank without
    1 one all_reduce of a 1: who still has data             1 of a 0; all 0: everyone is done, go to 5
    2 buffers, from the last rank that still has data       2 the same
    3 one all_reduce: will this backward be reduced         3 the same
    4 backward: the buckets                                 4 the buckets, as zeros
                                                            5 weights and buffers of a rank that was last
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import JoinHook

if TYPE_CHECKING:
    from lockstep.nn.ddp import DistributedDataParallel


class Shadow(JoinHook):
    """What a rank without data does."""

    def __init__(self, wrapper: DistributedDataParallel, *, by_initial_size: bool) -> None:
        self._wrapper = wrapper
        wrapper.divide_by_initial_world_size = by_initial_size

    def main_hook(self) -> None:
        """Mirror one step of the others."""
        self._wrapper.mirror_step()

    def post_hook(self, is_last_joiner: bool) -> None:
        """Take over the model of a rank that was last: the others have missed its updates."""
        wrapper = self._wrapper
        source = highest_rank(wrapper.process_group, wrapper.device, is_last_joiner)
        wrapper.broadcast_model(source, buffers=wrapper.options.broadcast_buffers)


def highest_rank(group: dist.ProcessGroup, device: torch.device, mine: bool) -> int:
    """Return the highest rank of the group that raises its hand. A collective call."""
    rank = torch.tensor([group.rank() if mine else -1], device=device)
    dist.all_reduce(rank, op=dist.ReduceOp.MAX, group=group)
    return int(rank)


def count_ranks(group: dist.ProcessGroup, device: torch.device, mine: bool) -> int:
    """Return how many ranks raise their hand. A collective call."""
    count = torch.tensor([float(mine)], device=device)
    dist.all_reduce(count, group=group)
    return int(count)
