"""`pipeline`: lanes stream through the stages, in one of two orders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.stages.actions import check_order
from lockstep.strategies.staged import Staged

if TYPE_CHECKING:
    from lockstep.strategies.base import Training


class Pipeline(Staged):
    """A stage computes the next lane while the stages behind it compute the lanes before."""

    def order_of(self, training: Training) -> str:
        """Return the order that was asked for."""
        order = training.settings.pipeline_schedule
        check_order(order)
        return order
