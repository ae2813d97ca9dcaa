"""`torch-ddp`: PyTorch's DistributedDataParallel, for comparison."""

from __future__ import annotations

from lockstep.registry import StrategyDescription

STRATEGY = StrategyDescription(
    name="torch-ddp",
    help="PyTorch's DistributedDataParallel with its best documented settings",
    implementation="lockstep.strategies.torch_ddp.strategy:TorchDDP",
    least_workers=2,
)
