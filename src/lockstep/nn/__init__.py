"""Layers and wrappers that people with their own loop can take one by one."""

from lockstep.nn.ddp import DistributedDataParallel
from lockstep.nn.sync_batchnorm import SyncBatchNorm

__all__ = ["DistributedDataParallel", "SyncBatchNorm"]
