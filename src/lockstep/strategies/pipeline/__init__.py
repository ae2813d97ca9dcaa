"""`pipeline`: the model's layers are cut over workers, and lanes stream through them."""

from __future__ import annotations

from lockstep.registry import StrategyDescription

STRATEGY = StrategyDescription(
    name="pipeline",
    help="the model's layers are cut over workers, and lanes stream through them",
    implementation="lockstep.strategies.pipeline.strategy:Pipeline",
    exact=True,
    shares_memory=True,
    least_workers=2,
    staged=True,
)
