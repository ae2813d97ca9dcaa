"""`torch-fsdp`: PyTorch's fully_shard (FSDP2), for comparison."""

from __future__ import annotations

from lockstep.registry import StrategyDescription

STRATEGY = StrategyDescription(
    name="torch-fsdp",
    help="PyTorch's FSDP2: weights, gradients and optimizer state are divided over workers",
    implementation="lockstep.strategies.torch_fsdp.strategy:TorchFSDP",
    limits="lockstep.strategies.torch_fsdp.fsdp_blocks:limits",
    least_workers=2,
    equal_lanes=True,
)
