"""A model cut over workers, whoever computes its step: where it is cut, what this worker has of it, and evaluation."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from lockstep.comm.broadcast import broadcast_text
from lockstep.errors import BadInput
from lockstep.stages.actions import ONE_FORWARD_ONE_BACKWARD
from lockstep.stages.cuts import stage_ranges
from lockstep.stages.part import Part, keep_only
from lockstep.stages.stage_model import Received, StagedModel
from lockstep.stages.survey import Survey
from lockstep.stages.transfer import Transfer
from lockstep.state.holdings import split_state_name
from lockstep.strategies.base import Strategy, Training
from lockstep.strategies.optimizer_memory import stage_memory
from lockstep.strategies.sliced_optimizer import make_optimizer

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from lockstep.mesh import Mesh


class CutStrategy(Strategy):
    """One stage per process: the plain model under its plain names, with the tensors of other stages left out."""

    order = ONE_FORWARD_ONE_BACKWARD

    def __init__(self, mesh: Mesh, training: Training) -> None:
        super().__init__(mesh, training)
        if training.settings.sync_batchnorm:
            raise BadInput(f"--sync-batchnorm: strategy {training.settings.strategy} cuts the model; use ddp")
        model = training.model
        memory = stage_memory(
            training.optimizer,
            model,
            training.settings,
            lanes=training.lanes,
            order=self.order_of(training),
            lazy=mesh.world.device == "cpu",
        )
        survey = Survey.of(model, training.layers, self.example_run(), mesh.stages, memory)
        cut, self._cut, self._bubble = self._agree(survey)
        self.ownership = survey.ownership(cut)
        """Which stage holds what."""
        self.layers = [survey.layers[number] for number in stage_ranges(cut, len(survey.layers))[mesh.stage]]
        """Of this stage."""
        self.look_at(survey, cut)
        owned = self.ownership.owned(mesh.stage)
        self._make_optimizer, self._members = _prepare_optimizer(training, owned)
        keep_only(model, self.ownership.present(mesh.stage))
        self.part = Part(model, owned)
        """What this stage answers for."""
        self._transfer = Transfer(mesh.across_stages, mesh.toward_first)
        self._staged = StagedModel(model, self.layers, last=mesh.last_stage, device=mesh.world.device)

    def order_of(self, training: Training) -> str:
        """Return the order in which lanes are computed."""
        return self.order

    def look_at(self, survey: Survey, cut: list[int]) -> None:
        """Look at the model while it is still whole."""

    def forward_only(self, function: Callable[[nn.Module, Any], Any], data: Any) -> Any:
        """Call a function with the model on all stages; return what it returned on the last, None on the others."""
        received = Received(self._transfer.receive_value()) if self.mesh.stage else None
        returned, handed = self._staged.run(lambda model: function(model, data), received)
        if handed is not None:
            self._transfer.send_value(handed.packed, handed.tensors, handed.random)
            return None
        return returned

    def own_pieces(self, pieces: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Yield what this stage answers for of a whole state."""
        here = {f"parameter/{name}" for name, _ in self.part.named_parameters()}
        here |= {f"buffer/{name}" for name, _ in self.part.named_buffers()}
        for name, value in pieces:
            split = split_state_name(name)
            if (name if split is None else f"parameter/{split[0]}") in here:
                yield name, value

    def _agree(self, survey: Survey) -> tuple[list[int], str, float | None]:
        """Return the cut, what to say of it and the bubble to expect: rank 0 measures and decides."""
        settings, text = self.training.settings, ""
        if self.world.rank == 0:
            survey.measure()
            cut = survey.cut(settings.cut, self.mesh.stages)
            lanes = -(-self.training.lanes // self.mesh.replicas)
            order = self.order_of(self.training)
            said = survey.describe(cut, order, lanes)
            if warning := survey.warning(cut):
                said = f"{said}. Warning: {warning}"
            text = json.dumps([cut, said, survey.expected_bubble(cut, order, lanes)])
        chosen: tuple[list[int], str, float | None] = json.loads(broadcast_text(text, self.mesh.everyone))
        return chosen


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
