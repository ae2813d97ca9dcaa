"""A learning-rate schedule that counts epochs, in a recipe, whose schedule advances once a step."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from lockstep.errors import BadInput

if TYPE_CHECKING:
    from torch.optim.lr_scheduler import LRScheduler


def once_an_epoch(schedule: LRScheduler, epoch_steps: int) -> LRScheduler:
    """Have a schedule advance once in `epoch_steps` steps, and return it.

    `epoch_steps` is how many batches an epoch has: samples / global batch, rounded up, or down with `drop_last`.
    """
    if epoch_steps < 1:
        raise BadInput(f"once_an_epoch(..., epoch_steps={epoch_steps}): an epoch has at least 1 step")
    if "metrics" in inspect.signature(schedule.step).parameters:
        raise BadInput(f"{type(schedule).__name__} advances by a metric, which the schedule of a recipe does not get")
    # Its state stays its own, and so do its checkpoints; only what `step` does is another.
    kind: Any = type(schedule)
    schedule.__class__ = _counting(kind)
    vars(schedule).update(epoch_steps=epoch_steps, steps_done=0)
    return schedule


@functools.cache
def _counting(kind: Any) -> Any:
    def step(self: Any) -> None:
        self.steps_done += 1
        if self.steps_done % self.epoch_steps == 0:
            kind.step(self)

    return type(f"{kind.__name__}OnceAnEpoch", (kind,), {"step": step})
