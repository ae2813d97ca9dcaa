"""A learning-rate schedule that advances after every step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from lockstep.errors import BadInput

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from lockstep.recipe import ScheduleFactory


def by_step(make: ScheduleFactory | None) -> ScheduleFactory | None:
    """Return a factory that refuses a schedule which cannot advance by itself: it would fail in the first step."""
    if make is None:
        return None

    def schedule_of(optimizer: Optimizer) -> LRScheduler:
        schedule = make(optimizer)
        if isinstance(schedule, ReduceLROnPlateau):
            raise BadInput(
                "schedule=... made ReduceLROnPlateau, which follows a metric, and a schedule advances after every "
                "step: use another one, or set trainer.lr in a loop of your own (lockstep docs own-loop)"
            )
        return schedule

    return schedule_of
