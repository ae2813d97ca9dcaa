"""Ranks with different numbers of batches: a rank without data takes part in the collectives and adds nothing.

The protocol is torch's (`torch.distributed.algorithms.Join`), so it works together with other joinable classes:

    a rank with data, before a forward                      a rank without data
    1 all_reduce of 1: how many ranks have data             1 all_reduce of 0; if the sum is 0, go to 5
    2 buffers, from the last rank that has data             2 the same
    3 all_reduce: will this backward be reduced             3 the same
    4 backward: the buckets                                 4 the buckets, as zeros
                                                            5 weights and buffers of a rank that ended last
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import JoinHook

if TYPE_CHECKING:
    from lockstep.nn.ddp import DistributedDataParallel


class ShadowHook(JoinHook):
    """What a rank without data does while the others train."""

    def __init__(self, wrapper: DistributedDataParallel, *, by_initial_size: bool) -> None:
        self._wrapper = wrapper
        wrapper.divide_by_initial_world_size = by_initial_size

    def main_hook(self) -> None:
        """Take part in one step of the others."""
        self._wrapper.mirror_step()

    def post_hook(self, is_last_joiner: bool) -> None:
        """Take over the model of a rank that ended last: the others have missed its updates."""
        wrapper = self._wrapper
        source = highest_rank(wrapper.process_group, wrapper.device, is_last_joiner)
        wrapper.broadcast_model(source, buffers=wrapper.options.broadcast_buffers)


def highest_rank(group: dist.ProcessGroup, device: torch.device, mine: bool) -> int:
    """Return the highest rank of the group that passes `mine=True`. A collective call."""
    rank = torch.tensor([group.rank() if mine else -1], device=device)
    dist.all_reduce(rank, op=dist.ReduceOp.MAX, group=group)
    return int(rank)


def count_ranks(group: dist.ProcessGroup, device: torch.device, mine: bool) -> int:
    """Return how many ranks pass `mine=True`. A collective call."""
    count = torch.tensor([float(mine)], device=device)
    dist.all_reduce(count, group=group)
    return int(count)
