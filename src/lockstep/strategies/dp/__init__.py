"""`dp`: one process, a thread per worker."""

from __future__ import annotations

from lockstep.registry import StrategyDescription

STRATEGY = StrategyDescription(
    name="dp",
    help="a thread per worker in one process, on the CPU or with a device each",
    implementation="lockstep.strategies.dp.strategy:DP",
    exact=True,
    one_process=True,
    limits="lockstep.strategies.dp.strategy:limits",
)
