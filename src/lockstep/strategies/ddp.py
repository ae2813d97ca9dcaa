"""`ddp`: a process per worker; the host's workers share one copy of weights, and each updates a slice of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist
from torch import Tensor

from lockstep.comm.arena import Arena
from lockstep.comm.exact import Collective, Exchange, InProcess, SharedArena
from lockstep.strategies.base import StepStats, Strategy, Training
from lockstep.strategies.exact import ExactWorker, arena_bytes
from lockstep.strategies.plain_state import named_state, optimizer_state, optimizer_state_dict

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from lockstep.data.loader import Batch
    from lockstep.world import World


class Exact(Strategy):
    """One worker per process, over some exchange."""

    def __init__(self, world: World, training: Training, exchange: Exchange) -> None:
        super().__init__(world, training)
        self.exchange = exchange
        self.worker = ExactWorker(training, exchange, world.device)

    @property
    def optimizer(self) -> Optimizer:
        """The user's optimizer, over this worker's slices."""
        return self.worker.optimizer

    def step(self, batch: Batch) -> StepStats:
        """Do the exact step on this worker's lanes."""
        lanes = {lane.lane: lane for lane in batch.lanes if lane.samples}
        return self.worker.step(batch.step, lanes, self.lane_loss)

    def state(self) -> dict[str, Tensor]:
        """Return the whole state on every rank."""
        return named_state(self.worker, optimizer_state([self.worker], self.exchange.everyone))

    def optimizer_state_dict(self) -> dict[str, object]:
        """Return the state of the plain optimizer; it loads there."""
        return optimizer_state_dict(self.worker, optimizer_state([self.worker], self.exchange.everyone))


class DDP(Exact):
    """The arena where all ranks share a host and memory; elsewhere own weights and collectives."""

    name = "ddp"

    def __init__(self, world: World, training: Training) -> None:
        super().__init__(world, training, _exchange(world, training))


def _exchange(world: World, training: Training) -> Exchange:
    if world.size == 1:
        return InProcess(training.lanes)
    if world.backend == "shm" and world.nodes == 1:
        return SharedArena(Arena(dist.group.WORLD, arena_bytes(training, world.size)), training.lanes)
    return Collective(training.lanes)
