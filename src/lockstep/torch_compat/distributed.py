"""Of torch.distributed: stores, options, the default group, and the all-gather into one tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist

# torch.distributed has the stores too, as documented names, but its types do not export them.
from torch._C._distributed_c10d import AllgatherOptions, FileStore, PrefixStore, Store, TCPStore

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "ALL_GATHER_SINGLE",
    "AllgatherOptions",
    "FileStore",
    "PrefixStore",
    "Store",
    "TCPStore",
    "all_gather_single",
    "averages",
    "default_group",
    "default_store",
    "group_all_gather",
]

ALL_GATHER_SINGLE: Final = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
"""What torch.distributed calls the all-gather into one tensor: all_gather_single since 2.13."""

all_gather_single: Callable[..., Any] = getattr(dist, ALL_GATHER_SINGLE)
"""Every rank's tensor in one tensor."""


def group_all_gather(group: dist.ProcessGroup) -> Callable[..., Any]:
    """Return a group's own all-gather into one tensor, which spares the checks of the public function.

    It is called with the output, the input and AllgatherOptions. Until 2.12 it was `_allgather_base`.
    """
    method: Callable[..., Any] = getattr(group, "all_gather_single", None) or group._allgather_base
    return method


def averages(device: str) -> bool:
    """Say whether a reduce-scatter that is asked for the mean gives it; all ranks must ask.

    gloo takes the request in torch 2.8, and gives the sum.
    """
    ones, mean = torch.ones(dist.get_world_size(), device=device), torch.zeros(1, device=device)
    # its name since 2.13; the old one warns there
    reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    reduce_scatter(mean, ones, op=dist.ReduceOp.AVG)
    return mean.item() == 1.0


def default_group() -> dist.ProcessGroup:
    """Return the group of all ranks; torch says what is wrong if there is none."""
    return dist.distributed_c10d._get_default_group()


def default_store() -> Store:
    """Return the store that the default group was made with."""
    return dist.distributed_c10d._get_default_store()
