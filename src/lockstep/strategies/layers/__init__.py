"""`layers`: the model's layers are cut over workers, and one lane at a time goes through all of them and back."""

from __future__ import annotations

from lockstep.registry import StrategyDescription

STRATEGY = StrategyDescription(
    name="layers",
    help="the model's layers are cut over workers, and one lane at a time goes through all of them and back",
    implementation="lockstep.strategies.layers.strategy:Layers",
    exact=True,
    shares_memory=True,
    least_workers=2,
    staged=True,
)
