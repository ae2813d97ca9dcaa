"""`torch-ddp`: PyTorch's DistributedDataParallel with its best documented settings, for comparison."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from lockstep.nn.convert import without_samples
from lockstep.strategies.base import How, LaneLoss, StepStats, Strategy, Training, Tuned, backward, scale_gradients
from lockstep.strategies.ddp_timer import DDPTimer
from lockstep.strategies.load_state import load_plain

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from lockstep.data.loader import Batch, LaneBatch
    from lockstep.mesh import Mesh
    from lockstep.strategies.clock import Clock


def best_settings() -> dict[str, Any]:
    """Return torch's own options for speed, as far as this version has them.

    `static_graph` is not among them: on these models, which have no unused parameter, it makes no difference.
    """
    known = inspect.signature(DistributedDataParallel).parameters
    return {name: True for name in ("gradient_as_bucket_view", "batched_grad_copy") if name in known}


class TorchDDP(Strategy):
    """Gradients as views of the buckets; lanes before the last are accumulated without communication.

    DDP divides the sum of the ranks' gradients by their number. The correct gradient is the sum over all lanes divided
    by the global weight:

    - a mean loss is weighted by samples, and their global number is known before backward: each lane's loss is scaled
      by `ranks * samples / global samples`, and no extra pass over the gradients is needed;
    - a loss with its own weight is known only after forward: the weights are summed over the ranks after backward (one
      number), and the gradients are scaled once.
    """

    def __init__(self, mesh: Mesh, training: Training) -> None:
        world = mesh.world
        super().__init__(mesh, training)
        on_cpu = world.device == "cpu"
        self._ddp = DistributedDataParallel(
            training.model,
            device_ids=None if on_cpu else [torch.device(world.device).index],
            **best_settings(),
        )
        self._timer = DDPTimer(self._ddp)
        self._optimizer = training.optimizer(training.model.parameters())
        self._schedule = training.schedule(self._optimizer) if training.schedule else None

    @property
    def optimizer(self) -> Optimizer:
        """This rank's own copy of the optimizer."""
        return self._optimizer

    def how(self) -> How:
        """Return how PyTorch exchanges gradients and updates weights."""
        return How(
            exchange=f"torch DDP over {self.world.backend}", optimizer="replicated: every worker updates its own copy"
        )

    def step(self, batch: Batch, clock: Clock) -> StepStats:
        """Accumulate this rank's lanes; the backward of the last one also reduces over the ranks."""
        total, weight, by_samples = 0.0, 0.0, True
        for position, lane in enumerate(batch.lanes):
            last = position == len(batch.lanes) - 1
            with contextlib.nullcontext() if last else self._ddp.no_sync():
                loss = self._forward(lane, batch.step)
                clock.lap("forward")
                total, weight, by_samples = total + loss.value, weight + loss.weight, loss.by_samples
                backward(loss.total * (self.mesh.replicas / batch.samples) if by_samples else loss.total)
                clock.lap("backward")
        self._timer.divide(clock)
        if not by_samples:
            scale_gradients(self.module, self.mesh.replicas / self._global(weight))
            clock.lap("exchange")
        if self.training.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.module.parameters(), self.training.clip)
        self._optimizer.step()
        if self._schedule is not None:
            self._schedule.step()
        self._optimizer.zero_grad(set_to_none=True)
        clock.lap("optimizer")
        mean = total / weight if weight else 0.0
        return StepStats.of(batch.step, mean, weight, clock=clock, sent=self._timer.sent)

    def prepare_evaluation(self) -> None:
        """Broadcast rank 0's buffers, as DDP itself does before each training forward."""
        for buffer in self.module.buffers():
            dist.broadcast(buffer, src=0)

    def tuned(self) -> list[Tuned]:
        """Return this rank's optimizer with the names of the trained parameters of each group."""
        names = {id(p): name for name, p in self.module.named_parameters() if p.requires_grad}
        groups = [group["params"] for group in self._optimizer.param_groups]
        members = [[names[id(p)] for p in group if id(p) in names] for group in groups]
        return [Tuned(self._optimizer, self._schedule, members, dict(self.module.named_parameters()))]

    def load(self, pieces: Iterable[tuple[str, Tensor]]) -> None:
        """Load a whole state into this rank's copy."""
        load_plain(self.module, self._optimizer, pieces)

    def _forward(self, lane: LaneBatch, step: int) -> LaneLoss:
        if lane.samples:
            return self.lane_loss(self._ddp, lane, step)
        # See [Note: filler]: in evaluation mode, so that its statistics change no buffer either.
        with without_samples(self.module):
            loss = self.lane_loss(self._ddp, lane, step)
        return loss._replace(total=loss.total * 0.0, weight=0.0, value=0.0)

    def _global(self, weight: float) -> float:
        count = torch.tensor(weight, dtype=torch.float64, device=self.world.device)
        dist.all_reduce(count)
        return float(count)
