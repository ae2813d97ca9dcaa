"""The sums of large gradients where no other worker reads them: they stay in the tensors that backward made.

    lane 0    g0                            kept as it is
    lane 1    g0 += g1                      while g1 is in the cache; its memory is free for the next gradient
    lane 2    g2
    lane 3    g2 += g3, then g2 += g0       the sum of all four lanes; now g0's memory is free

Nothing is copied into a buffer, and memory that was just read is written again. The additions are those of the tree. As
in torch's own accumulation, what is written to is a gradient of an earlier lane; one whose memory others see is copied.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from lockstep.lanes.tree import Fold
from lockstep.torch_compat.tensors import shares_storage

Finish = Callable[[list[Tensor]], Tensor]
"""Takes one or two sums, and returns what becomes of them, in place of the first."""


class KeptSums:
    """Sums over lanes by buffer of the fold and parameter; one that is not there is zero."""

    def __init__(self) -> None:
        self._sums: dict[int, dict[int, Tensor]] = {}
        self._done: set[int] = set()
        self.finish: Finish | None = None
        """Of the last lane: adds the last two sums, and does what is done to a sum over all lanes, in one pass."""

    def begin(self, fold: Fold) -> None:
        """Start a lane: a fresh buffer may hold what a step that failed left there."""
        if fold.fresh:
            self._sums[fold.buffer] = {}
            self._done.clear()

    def begin_one(self, index: int, fold: Fold) -> None:
        """Start a lane for one parameter alone."""
        if fold.fresh:
            self._sums.setdefault(fold.buffer, {}).pop(index, None)

    def put(self, index: int, gradient: Tensor | None, fold: Fold) -> None:
        """Fold the gradient of one parameter, or none."""
        total = _sum(self._sums[fold.buffer].pop(index, None), gradient)
        *between, last = [self._sums[left].pop(index, None) for left, _ in fold.merges] or [None]
        for other in between:
            total = _sum(total, other)
        into = fold.merges[-1][0] if fold.merges else fold.buffer
        finish = None if fold.fresh else self.finish  # to a fresh buffer further pieces may come
        terms = [one for one in (total, last) if one is not None]
        if finish is not None and terms:
            self._sums[into][index] = finish(terms)
            self._done.add(index)
        elif (whole := _sum(total, last)) is not None:
            self._sums[into][index] = whole

    def add_piece(self, index: int, gradient: Tensor, fold: Fold) -> None:
        """Add a further piece of the gradient that was put into a fresh buffer in this lane."""
        sums = self._sums[fold.buffer]
        sums[index] = sums[index] + gradient  # not in place: backward still runs, and may use what it made

    def take(self, index: int) -> tuple[Tensor | None, bool]:
        """Return the sum over all lanes, which is then the caller's, and whether it was finished."""
        done = index in self._done
        self._done.discard(index)
        return self._sums[0].pop(index, None), done


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Add in place to the first; if there is none, the second is the sum, in memory of its own."""
    if one is None:
        if other is not None and (shares_storage(other) or not other.is_contiguous()):
            return other.clone().contiguous()
        return other
    return one if other is None else one.add_(other)
