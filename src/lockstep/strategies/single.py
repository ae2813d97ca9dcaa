"""`single`: one device computes every lane, one after another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.errors import BadInput
from lockstep.strategies.base import Clock, StepStats, Strategy, Training, backward, scale_gradients

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from lockstep.data.loader import Batch
    from lockstep.world import World


class Single(Strategy):
    """All lanes on one worker: what the others are compared with."""

    name = "single"

    def __init__(self, world: World, training: Training) -> None:
        if world.size != 1:
            raise BadInput(f"strategy single trains on one worker, and this world has {world.size}: use --workers 1")
        super().__init__(world, training)
        self._optimizer = training.optimizer(training.model.parameters())

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer over all parameters."""
        return self._optimizer

    def step(self, batch: Batch) -> StepStats:
        """Sum the gradients of all lanes, divide once by the global weight, update."""
        clock, total, weight = Clock(), 0.0, 0.0
        for lane in batch.lanes:
            loss = self.lane_loss(self.module, lane, batch.step)
            clock.lap("forward")
            total += loss.value
            weight += loss.weight
            backward(loss.total)
            clock.lap("backward")
        scale_gradients(self.module, 1.0 / weight)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        clock.lap("optimizer")
        return StepStats(batch.step, total / weight, weight, clock.seconds)
