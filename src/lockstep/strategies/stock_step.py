"""A step with a stock wrapper of PyTorch: lanes are accumulated, and the last one's backward reduces over the ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lockstep.nn.convert import without_samples
from lockstep.strategies.base import LaneLoss, StepStats, Strategy, Training, Tuned, backward, scale_gradients
from lockstep.strategies.load_state import load_plain

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from lockstep.data.loader import Batch, LaneBatch
    from lockstep.mesh import Mesh
    from lockstep.strategies.clock import Clock


def update(optimizer: Optimizer, schedule: LRScheduler | None, clock: Clock) -> None:
    """End a stock step: update, advance the schedule, free the gradients."""
    optimizer.step()
    if schedule is not None:
        schedule.step()
    optimizer.zero_grad(set_to_none=True)
    clock.lap("optimizer")


class StockStrategy(Strategy):
    """Trains through a wrapper that divides the sum of the ranks' gradients by the number of ranks.

    The correct gradient is the sum over all lanes divided by the global weight:

    - a mean loss is weighted by samples, and their global number is known before backward: each lane's loss is scaled
      by `ranks * samples / global samples`, and no extra pass over the gradients is needed;
    - a loss with its own weight is known only after forward: the weights are summed over the ranks after backward (one
      number), and the gradients are scaled once.
    """

    def __init__(self, mesh: Mesh, training: Training, wrapped: nn.Module) -> None:
        """Let the loss function call `wrapped` in place of the model; the optimizer is made after it."""
        super().__init__(mesh, training)
        self._wrapped = wrapped
        self._optimizer = training.optimizer(training.model.parameters())
        self._schedule = training.schedule(self._optimizer) if training.schedule else None
        trained = [parameter for parameter in training.model.parameters() if parameter.requires_grad]
        self._sent = sum(parameter.numel() * parameter.element_size() for parameter in trained)

    @property
    def optimizer(self) -> Optimizer:
        """This rank's own optimizer."""
        return self._optimizer

    def accumulating(self) -> AbstractContextManager[None]:
        """Return the context of a lane before the last: its gradients are added up, and nothing is exchanged."""
        return contextlib.nullcontext()

    def divide_backward(self, clock: Clock) -> None:
        """Divide the lap of the backward that reduced over the ranks, where the wrapper says how long that took."""

    def step(self, batch: Batch, clock: Clock) -> StepStats:
        """Accumulate this rank's lanes; the backward of the last one also reduces over the ranks."""
        total, weight, by_samples = 0.0, 0.0, True
        for position, lane in enumerate(batch.lanes):
            last = position == len(batch.lanes) - 1
            with contextlib.nullcontext() if last else self.accumulating():
                loss = self._forward(lane, batch.step)
                clock.lap("forward")
                total, weight, by_samples = total + loss.value, weight + loss.weight, loss.by_samples
                backward(loss.total * (self.mesh.replicas / batch.samples) if by_samples else loss.total)
                clock.lap("backward")
        self.divide_backward(clock)
        if not by_samples:
            scale_gradients(self.module, self.mesh.replicas / self._global(weight))
            clock.lap("exchange")
        if self.training.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.module.parameters(), self.training.clip)
        update(self._optimizer, self._schedule, clock)
        mean = total / weight if weight else 0.0
        sent = self._sent if self.mesh.replicas > 1 else 0
        return StepStats.of(batch.step, mean, weight, clock=clock, sent=sent)

    def tuned(self) -> list[Tuned]:
        """Return this rank's optimizer with the names of the trained parameters of each group."""
        names = {id(p): name for name, p in self.module.named_parameters() if p.requires_grad}
        groups = [group["params"] for group in self._optimizer.param_groups]
        members = [[names[id(p)] for p in group if id(p) in names] for group in groups]
        return [Tuned(self._optimizer, self._schedule, members, dict(self.module.named_parameters()))]

    def load(self, pieces: Iterable[tuple[str, Tensor]]) -> None:
        """Load a whole state into this rank's copy."""
        load_plain(self.module, self._optimizer, pieces)

    def share_buffers(self) -> None:
        """Give every rank the buffers of rank 0, which answers for them."""
        for buffer in self.module.buffers():
            dist.broadcast(buffer, src=0)

    def _forward(self, lane: LaneBatch, step: int) -> LaneLoss:
        if lane.samples:
            return self.lane_loss(self._wrapped, lane, step)
        # See [Note: filler]: in evaluation mode, so that its statistics change no buffer either.
        with without_samples(self.module):
            loss = self.lane_loss(self._wrapped, lane, step)
        return replace(loss, total=loss.total * 0.0, given=0.0)

    def _global(self, weight: float) -> float:
        if self.world.size == 1:
            return weight
        count = torch.tensor(weight, dtype=torch.float64, device=self.world.device)
        dist.all_reduce(count)
        return float(count)
