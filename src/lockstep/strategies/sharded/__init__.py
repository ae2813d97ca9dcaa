"""`sharded`: as ddp, but weights, gradients and optimizer state are divided; weights come when they are needed."""

from __future__ import annotations

from lockstep.registry import StrategyDescription

STRATEGY = StrategyDescription(
    name="sharded",
    help="as ddp, but weights, gradients and optimizer state are divided over workers; weights come when needed",
    implementation="lockstep.strategies.sharded.strategy:Sharded",
    exact=True,
    shares_memory=True,
)
