"""A model cut over workers: `layers` and `pipeline` are this one strategy with another order of lanes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from lockstep.comm.broadcast import broadcast_text
from lockstep.data.loader import to_device
from lockstep.errors import BadInput
from lockstep.lanes.rng import seed_lane
from lockstep.stages.actions import ONE_FORWARD_ONE_BACKWARD, stage_actions
from lockstep.stages.cuts import stage_ranges
from lockstep.stages.ownership import Ownership
from lockstep.stages.part import Part, keep_only
from lockstep.stages.stage_model import Received, StagedModel
from lockstep.stages.survey import Survey
from lockstep.stages.transfer import Transfer
from lockstep.state.holdings import split_state_name
from lockstep.strategies.base import How, StepStats, Strategy, Training, Tuned, as_sum
from lockstep.strategies.ddp.strategy import choose_exchange
from lockstep.strategies.load_state import check_slices, load_workers, tuned
from lockstep.strategies.sliced_optimizer import make_optimizer
from lockstep.strategies.stage_worker import Borrowed, StageLoss, StageWorker
from lockstep.strategies.worker_state import worker_holdings

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from lockstep.data.loader import Batch, LaneBatch
    from lockstep.mesh import Mesh
    from lockstep.state.holdings import Holding
    from lockstep.strategies.clock import Clock


class Staged(Strategy):
    """One stage per process; the replicas of a stage exchange sums as workers of `ddp` do."""

    order = ONE_FORWARD_ONE_BACKWARD

    def __init__(self, mesh: Mesh, training: Training) -> None:
        super().__init__(mesh, training)
        if training.settings.sync_batchnorm:
            raise BadInput(f"--sync-batchnorm: strategy {training.settings.strategy} cuts the model; use ddp")
        model = training.model
        survey = Survey.of(model, training.layers, self._example(), mesh.stages)
        cut, self._cut = self._agree(survey)
        ownership = survey.ownership(cut)
        own = [survey.layers[number] for number in stage_ranges(cut, len(survey.layers))[mesh.stage]]
        optimizer, self._members = _prepare_optimizer(training, ownership.owned(mesh.stage))
        keep_only(model, ownership.present(mesh.stage))
        self._transfer = Transfer(mesh.across_stages)
        self._staged = StagedModel(model, own, last=mesh.last_stage, device=mesh.world.device)
        part = replace(training, model=Part(model, ownership.owned(mesh.stage)), optimizer=optimizer)
        self.worker = StageWorker(
            part,
            choose_exchange(mesh, part),
            mesh,
            transfer=self._transfer,
            actions=partial(stage_actions, self.order_of(training), mesh.stages, mesh.stage),
            shared=_shared(model, ownership, mesh.stage),
        )

    def order_of(self, training: Training) -> str:
        """Return the order in which lanes are computed."""
        return self.order

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
        return stats

    def _lane(self, _: nn.Module, lane: LaneBatch, step: int) -> StageLoss:
        received = Received(self._transfer.receive_value()) if self.mesh.stage else None
        if received is not None:
            self._clock.lap("wait")
        seed_lane(self.training.seed, step, lane.lane, self.world.device)
        returned, handed = self._staged.run(lambda model: self.call_loss(model, lane, step), received)
        loss = None if handed is not None else self.finite(as_sum(returned, lane.samples), lane, step)
        return StageLoss(received, handed, loss)

    def forward_only(self, function: Callable[[nn.Module, Any], Any], data: Any) -> Any:
        """Call a function with the model on all stages; return what it returned on the last, None on the others."""
        received = Received(self._transfer.receive_value()) if self.mesh.stage else None
        returned, handed = self._staged.run(lambda model: function(model, data), received)
        if handed is not None:
            self._transfer.send_value(handed.packed, handed.tensors, handed.random)
            return None
        return returned

    def how(self) -> How:
        """Say how the model was cut, how the stage's sums are exchanged, and how the optimizer runs."""
        return replace(self.worker.how, cut=self._cut)

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
        load_workers([self.worker], self._own(pieces))
        self.worker.renew_shared()

    def _own(self, pieces: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        part = self.worker.training.model
        here = {f"parameter/{name}" for name, _ in part.named_parameters()}
        here |= {f"buffer/{name}" for name, _ in part.named_buffers()}
        for name, value in pieces:
            split = split_state_name(name)
            if (name if split is None else f"parameter/{split[0]}") in here:
                yield name, value

    def _example(self) -> Callable[[nn.Module], Tensor] | None:
        """Return a function that runs the loss on one lane, with any model."""
        make = self.training.example
        if make is None:
            return None

        def run(model: nn.Module) -> Tensor:
            seed_lane(self.training.seed, 0, 0, self.world.device)
            return as_sum(self.training.loss(model, to_device(make(), self.world.device)), 1).total

        return run

    def _agree(self, survey: Survey) -> tuple[list[int], str]:
        """Return the cut and what to say of it: rank 0 measures and decides."""
        settings, text = self.training.settings, ""
        if self.world.rank == 0:
            survey.measure()
            cut = survey.cut(settings.cut, self.mesh.stages)
            lanes = -(-self.training.lanes // self.mesh.replicas)
            said = survey.describe(cut, self.order_of(self.training), lanes)
            if warning := survey.warning(cut):
                said = f"{said}. Warning: {warning}"
            text = json.dumps([cut, said])
        chosen: tuple[list[int], str] = json.loads(broadcast_text(text, self.mesh.everyone))
        return chosen


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


def _prepare_optimizer(
    training: Training, owned: set[str]
) -> tuple[Callable[[Iterable[nn.Parameter]], Optimizer], list[list[str]]]:
    """Make the user's optimizer of the whole model, then leave in its groups what this stage owns.

    So its groups are those of the whole model, whatever the user's function makes them of; their names are returned.
    """
    names = {id(p): name for name, p in training.model.named_parameters() if p.requires_grad}
    trained = [parameter for parameter in training.model.parameters() if parameter.requires_grad]
    optimizer = make_optimizer(training.optimizer, trained)
    members = [[names[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["params"] = [one for one in group["params"] if f"parameter/{names[id(one)]}" in owned]
    return lambda _: optimizer, members
