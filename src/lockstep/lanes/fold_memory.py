"""How many gradients a worker holds at once while it folds its lanes (pure), counted in gradients of the whole model.

partials    one for each of its nodes of the tree: what it exchanges
scratch     further buffers that a fold of many lanes writes to
waiting     the first of two neighbouring lanes, which waits where backward made it, see [Note: pairs]; of a worker
            alone all sums, see strategies/kept_sums.py
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lockstep.lanes.schedule import owned_lanes
from lockstep.lanes.tree import Fold, cover, folding, running_sum


class FoldMemory(NamedTuple):
    """Gradients of the whole model that one worker holds at once."""

    partials: int
    scratch: int
    waiting: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.partials + self.scratch + self.waiting


def fold_memory(lanes: int, workers: int, rank: int, *, exact: bool = True, lazy: bool = True) -> FoldMemory:
    """Return what one of the workers that share out the lanes holds.

    `lazy`: scratch that is never written needs no memory, and gradients wait, as on the CPU; an accelerator allocates
    all of it, and adds every gradient at once.
    """
    owned = owned_lanes(lanes, workers, rank)
    plans = [folding(node) for node in cover(lanes, owned)] if exact else [running_sum(len(owned))]
    if not lazy:
        return FoldMemory(len(plans), max(buffers for _, buffers in plans) - 1, 0)
    if workers == 1:
        return FoldMemory(0, 0, plans[0][1])
    written = set().union(*(_written(folds) for folds, _ in plans))
    waiting = any(fold.waits for folds, _ in plans for fold in folds)
    return FoldMemory(len(plans), len(written - {0}), int(waiting))


def _written(folds: Sequence[Fold]) -> set[int]:
    """Return the buffers that large gradients are written to; a pair that completes a sum goes there directly."""
    return {fold.merges[-1].left if fold.merges else fold.buffer for fold in folds if not fold.waits}
