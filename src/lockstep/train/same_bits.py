"""For how many workers the bits of a run hold. Pure."""

from __future__ import annotations

from lockstep.registry import described
from lockstep.settings import Settings

ADVISED_LANES = 8
"""How many lanes are advised where there is one per worker: they hold for most single hosts."""


def depends_on_workers(settings: Settings) -> str:
    """Return which setting makes the digest depend on the number of workers; empty if none does."""
    causes = {"SyncBatchNorm": settings.sync_batchnorm, "inexact sum": not settings.exact}
    return ", ".join(name for name, holds in causes.items() if holds)


def same_bits_up_to(settings: Settings, lanes: int) -> int:
    """Return up to how many workers, from 1, the digest is the same; 0: it depends on their number."""
    return 0 if depends_on_workers(settings) or not promises_bits(settings.strategy) else lanes


def bits_hold_for(settings: Settings, *, lanes: int, global_batch: int) -> str:
    """Say for how many workers the bits hold, and how they would hold for more."""
    workers = settings.workers
    if not same_bits_up_to(settings, lanes):
        cause = depends_on_workers(settings) or f"strategy {settings.strategy}"
        return f"the bits depend on the number of workers: {cause}"
    each = ", one per worker" if lanes == workers > 1 else ""
    text = f"{lanes} lane{'s' if lanes > 1 else ''}{each}: the same bits on {_workers(lanes)}"
    more = more_lanes(lanes, global_batch) if lanes == workers else None
    return text if more is None else f"{text}; lanes={more} in the recipe would hold for up to {more}"


def more_lanes(lanes: int, global_batch: int) -> int | None:
    """Return a larger number of lanes that divides the global batch; None: there is none."""
    least = max(ADVISED_LANES, lanes + 1)
    return next((count for count in range(least, global_batch + 1) if global_batch % count == 0), None)


def promises_bits(strategy: str) -> bool:
    """Say whether a strategy gives the same bits on any number of workers; False for one that is not known here."""
    description = described(strategy)
    return description is not None and description.exact


def _workers(lanes: int) -> str:
    return {1: "1 worker", 2: "1 or 2 workers"}.get(lanes, f"any number of workers up to {lanes}")
