"""Layers and wrappers that a user with an own training loop can use one by one."""

from lockstep.nn.ddp import DistributedDataParallel
from lockstep.nn.sync_batchnorm import SyncBatchNorm

__all__ = ["DistributedDataParallel", "SyncBatchNorm"]
