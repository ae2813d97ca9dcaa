"""`sharded`: weights, gradients and optimizer state divided over workers; on one host the arena is all of that."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from lockstep.errors import BadInput
from lockstep.strategies.base import How, Strategy, Training
from lockstep.strategies.ddp.strategy import Exact, choose_exchange
from lockstep.strategies.exact_step import ExactWorker
from lockstep.strategies.load_state import load_workers
from lockstep.strategies.shard_worker import ShardWorker

if TYPE_CHECKING:
    from lockstep.mesh import Mesh

ONE_COPY = (
    "nothing is left to divide: the workers of this host share one copy of the weights, and each has a part of the "
    "optimizer's state"
)


class Sharded(Exact):
    """Divided over processes that share no memory; the arena where they do, which holds one copy already."""

    def __init__(self, mesh: Mesh, training: Training) -> None:
        Strategy.__init__(self, mesh, training)
        group, world = mesh.across_replicas, mesh.world
        shared = group.size == 1 or (world.backend == "shm" and world.nodes == 1)
        self.lanes_in_turn = not shared
        if shared:
            self.worker = ExactWorker(training, choose_exchange(mesh, training), world.device)
        else:
            self.worker = self._divided()
        self.exchange = self.worker.exchange

    def _divided(self) -> ShardWorker:
        run = self.example_run()
        if run is None:
            raise BadInput(
                "strategy sharded runs one lane to see which weights are used where: pass a function that makes one, "
                "Trainer(..., example=lambda: batch)"
            )
        # Gradients come from all workers lane by lane, and the tree over them costs no more than a running sum.
        training = replace(self.training, settings=replace(self.training.settings, exact=True))
        return ShardWorker(training, self.mesh.across_replicas, self.world.device, run)

    def how(self) -> How:
        """Say what is divided."""
        divided = isinstance(self.worker, ShardWorker) or self.exchange.workers == 1
        return self.worker.how if divided else replace(self.worker.how, shards=ONE_COPY)

    def prepare_evaluation(self) -> None:
        """Have the whole model on every worker: what an evaluation calls, and how often, only it knows."""
        if isinstance(self.worker, ShardWorker):
            self.worker.fetch_all()

    def finish_evaluation(self) -> None:
        """Drop what is the others'."""
        if isinstance(self.worker, ShardWorker):
            self.worker.drop_all()

    def load(self, pieces: Iterable[tuple[str, Tensor]]) -> None:
        """Keep this worker's part of a whole state."""
        load_workers([self.worker], pieces)
        if isinstance(self.worker, ShardWorker):
            self.worker.renew()
