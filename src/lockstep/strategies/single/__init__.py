"""`single`: one device computes every lane, one after another."""

from __future__ import annotations

from lockstep.registry import StrategyDescription

STRATEGY = StrategyDescription(
    name="single",
    help="one worker computes every lane, one after another",
    implementation="lockstep.strategies.single.strategy:Single",
    exact=True,
    one_process=True,
    most_workers=1,
)
