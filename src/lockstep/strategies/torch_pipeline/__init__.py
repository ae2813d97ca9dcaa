"""`torch-pipeline`: torch.distributed.pipelining on the cut of `pipeline`, for comparison."""

from __future__ import annotations

from lockstep.registry import StrategyDescription

STRATEGY = StrategyDescription(
    name="torch-pipeline",
    help="torch.distributed.pipelining on the same cut, with lanes as its micro-batches",
    implementation="lockstep.strategies.torch_pipeline.strategy:TorchPipeline",
    limits="lockstep.strategies.torch_pipeline.pipelining_limits:limits",
    least_workers=2,
    staged=True,
)
