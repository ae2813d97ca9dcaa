"""The exact step on a model that is cut: `layers` and `pipeline` are this one strategy with another order of lanes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor, nn

from lockstep.lanes.rng import seed_lane
from lockstep.stages.actions import stage_actions
from lockstep.stages.ownership import Ownership
from lockstep.stages.stage_model import Received
from lockstep.strategies.base import How, StepStats, Training, Tuned, as_sum
from lockstep.strategies.cut_strategy import CutStrategy
from lockstep.strategies.ddp.strategy import choose_exchange
from lockstep.strategies.load_state import check_slices, load_workers, tuned
from lockstep.strategies.stage_worker import Borrowed, StageLoss, StageWorker
from lockstep.strategies.worker_state import worker_holdings
from lockstep.torch_compat.graph import SavedElsewhere

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from lockstep.data.loader import Batch, LaneBatch
    from lockstep.mesh import Mesh
    from lockstep.state.holdings import Holding
    from lockstep.strategies.clock import Clock


class Staged(CutStrategy):
    """One stage per process; the replicas of a stage exchange sums as workers of `ddp` do."""

    reads_later = True

    def __init__(self, mesh: Mesh, training: Training) -> None:
        super().__init__(mesh, training)
        part = replace(training, model=self.part, optimizer=self._make_optimizer)
        self.worker = StageWorker(
            part,
            choose_exchange(mesh, part),
            mesh,
            transfer=self._transfer,
            actions=partial(stage_actions, self.order_of(training), mesh.stages, mesh.stage),
            shared=_shared(training.model, self.ownership, mesh.stage),
        )

    @property
    def optimizer(self) -> Optimizer:
        """The user's optimizer, over this worker's slices of its stage."""
        return self.worker.optimizer

    def step(self, batch: Batch, clock: Clock) -> StepStats:
        """Do the exact step on this replica's lanes."""
        lanes = {lane.lane: lane for lane in batch.lanes if lane.samples}
        self._clock = clock
        stats = self.worker.step(batch.step, lanes, self._lane, clock=clock)  # type: ignore[arg-type]
        self.worker.renew_shared()
        clock.lap("exchange")
        return stats

    def _lane(self, _: nn.Module, lane: LaneBatch, step: int) -> StageLoss:
        received = Received(self._transfer.receive_value()) if self.mesh.stage else None
        if received is not None:
            self._clock.lap("wait", lane.lane)
        seed_lane(self.training.seed, step, lane.lane, self.world.device)
        elsewhere = SavedElsewhere()
        with elsewhere.watch() if self.worker.may_be_in_halves(lane.lane) else contextlib.nullcontext():
            returned, handed = self._staged.run(lambda model: self.call_loss(model, lane, step), received)
        loss = None if handed is not None else self.finite(as_sum(returned, lane.samples), lane, step)
        return StageLoss(received, handed, loss, in_one=elsewhere.seen)

    def how(self) -> How:
        """Say how the model was cut, how the stage's sums are exchanged, and how the optimizer runs."""
        return replace(self.worker.how, cut=self._cut, bubble=self._bubble)

    def holdings(self) -> list[Holding]:
        """Answer for this worker's slices of its stage."""
        return worker_holdings(self.worker)

    def tuned(self) -> list[Tuned]:
        """Return the one optimizer of this worker, with the groups of the whole model."""
        return [tuned(self.worker)._replace(members=self._members)]

    def check_state(self, held: Mapping[str, Mapping[str, tuple[int, ...]]], where: str) -> None:
        """Refuse state that cannot be cut into slices."""
        check_slices(self.worker, held, where)

    def load(self, pieces: Iterable[tuple[str, Tensor]]) -> None:
        """Keep what this stage holds of a whole state."""
        load_workers([self.worker], self.own_pieces(pieces))
        self.worker.renew_shared()


def _shared(model: nn.Module, ownership: Ownership, stage: int) -> list[Borrowed]:
    """Return the trained weights that this stage shares with others."""
    trained = {f"parameter/{name}": p for name, p in model.named_parameters() if p.requires_grad}
    return [
        Borrowed(
            number,
            trained[name],
            before=ownership.before(name, stage),
            after=ownership.after(name, stage),
            owner=ownership.users[name][0],
            users=ownership.users[name],
        )
        for number, name in enumerate(ownership.shared(list(trained)))
        if stage in ownership.users[name]
    ]
