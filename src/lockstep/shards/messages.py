"""Messages between two workers: what each sends to and gets from the other, at the same time."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from lockstep.comm.group import Group


def both_ways(group: Group, peer: int, out: Tensor, into: Tensor) -> list[dist.P2POp]:
    """Return what sends a tensor to a worker of the group and receives another one from it."""
    return [
        dist.P2POp(dist.isend, out, group=group.process_group, group_peer=peer),
        dist.P2POp(dist.irecv, into, group=group.process_group, group_peer=peer),
    ]


def begin(operations: list[dist.P2POp]) -> list[dist.Work]:
    """Begin to send and receive; torch refuses an empty list."""
    return dist.batch_isend_irecv(operations) if operations else []
