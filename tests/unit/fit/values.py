"""Facts of a made-up recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lockstep.fit.lane_facts import LaneFacts, LayerMemory

MIB = 2**20
LAYERS = tuple(
    LayerMemory(name=f"layer {number}", seconds=1.0, weights=25 * MIB, keeps=5 * MIB, passes=MIB) for number in range(4)
)
FACTS = LaneFacts(
    device="cpu",
    measure="peak RSS",
    free=4096 * MIB,
    lanes=8,
    global_batch=64,
    base=200 * MIB,
    weights=100 * MIB,
    largest=25 * MIB,
    block=25 * MIB,
    state=200 * MIB,
    kept=20 * MIB,
    lane=30 * MIB,
    layers=LAYERS,
)


def facts(**changes: Any) -> LaneFacts:
    """Return them with some changed."""
    return replace(FACTS, **changes)
