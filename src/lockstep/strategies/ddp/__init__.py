"""`ddp`: a process per worker; the workers of a host share one copy of the weights, and each updates a slice of it."""

from __future__ import annotations

from lockstep.registry import StrategyDescription

STRATEGY = StrategyDescription(
    name="ddp",
    help="a process per worker; the workers of a host share one copy of the weights, and each updates a slice of it",
    implementation="lockstep.strategies.ddp.strategy:DDP",
    exact=True,
    shares_memory=True,
)
