"""The exact step over collectives: sums of a section leave while backward computes the next ones.

    backward of the last lane   ... section 1 final | section 2 final | ...        the stream that computes
    all-to-all                                      [1] [2] ...                    the backend's own stream or thread
    after backward                                          losses, then wait, add up, update, gather

All workers start the collectives of a step in one order, whatever the order in which their sections become final: a
backend such as NCCL matches them by it.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from lockstep.exchange.collective import Collective, SlicesOnTheWay
from lockstep.strategies.base import LaneLoss, Training
from lockstep.strategies.clock import Clock, NoClock
from lockstep.strategies.lane_slots import LaneSlot
from lockstep.strategies.sectioned_step import SectionedWorker
from lockstep.strategies.sliced_optimizer import GradientRun


class BucketedWorker(SectionedWorker):
    """One worker whose exchange is asynchronous collectives."""

    exchange: Collective

    def __init__(self, training: Training, exchange: Collective, device: str) -> None:
        super().__init__(training, exchange, device)
        self._final: set[int] = set()
        self._pending: dict[int, SlicesOnTheWay] = {}
        self._clock: Clock = NoClock()

    def _fold_lanes(self, run: Callable[[int], LaneLoss | None], table: Tensor, clock: Clock) -> Tensor:
        self._clock = clock
        others = super()._fold_lanes(run, table, clock)
        clock.end_hidden()
        return others

    def _begin(self, slot: LaneSlot, table: Tensor, loss: LaneLoss | None) -> None:
        self._abandon()

    def _abandon(self) -> None:
        self._final.clear()
        self._pending.clear()

    def _complete(self, section: int) -> None:
        self._final.add(section)
        while len(self._pending) < len(self._order) and (following := self._order[len(self._pending)]) in self._final:
            if not self._pending:
                self._clock.begin_hidden()
            self._pending[following] = self.exchange.start(self._partials[following], self.parts[following])

    def _tell(self, table: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
        """Step 2, after the sums that are left have been started."""
        for section in self._rest:
            self._complete(section)
        return super()._tell(table, others)

    def _reduce(self, weight: float) -> list[GradientRun]:
        """Step 3: add up what has come."""
        return [
            GradientRun(section, part.start, self.exchange.finish(self._pending.pop(section), weight))
            for section, part in enumerate(self.parts)
        ]
