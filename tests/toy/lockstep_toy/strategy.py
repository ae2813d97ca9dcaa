"""A strategy in the fewest lines: a copy of the model on each worker, gradients summed by torch's all-reduce."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep.strategies.base import How, StepStats, Strategy, Training, Tuned, backward
from lockstep.strategies.load_state import load_plain

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from lockstep.data.loader import Batch
    from lockstep.mesh import Mesh
    from lockstep.strategies.clock import Clock


class Toy(Strategy):
    """Sums of losses and weights are all-reduced, and every worker makes the same update."""

    def __init__(self, mesh: Mesh, training: Training) -> None:
        super().__init__(mesh, training)
        self._optimizer = training.optimizer(training.model.parameters())

    @property
    def optimizer(self) -> Optimizer:
        return self._optimizer

    def how(self) -> How:
        return How(exchange="toy all-reduce", optimizer="replicated: every worker updates its own copy")

    def step(self, batch: Batch, clock: Clock) -> StepStats:
        total = weight = 0.0
        for lane in batch.lanes:
            loss = self.lane_loss(self.module, lane, batch.step)
            clock.lap("forward")
            backward(loss.total)
            clock.lap("backward")
            total, weight = total + loss.value, weight + loss.weight
        whole = torch.tensor(weight)
        dist.all_reduce(whole)
        for parameter in self.module.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            parameter.grad /= whole
        clock.lap("exchange")
        self._optimizer.step()
        self._optimizer.zero_grad()
        clock.lap("optimizer")
        return StepStats.of(batch.step, total / weight, weight, clock=clock, sent=0)

    def tuned(self) -> list[Tuned]:
        parameters = dict(self.module.named_parameters())
        return [Tuned(self._optimizer, None, [list(parameters)], parameters)]

    def load(self, pieces: Iterable[tuple[str, Tensor]]) -> None:
        load_plain(self.module, self._optimizer, pieces)
