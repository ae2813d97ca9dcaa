"""`torch-pipeline`: torch.distributed.pipelining with the recipe's own loss function, for comparison."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe

from lockstep.errors import BadInput, LockstepError
from lockstep.lanes.rng import seed_lane
from lockstep.stages.actions import FILL_DRAIN, check_order, lane_order
from lockstep.stages.layer_costs import ChainRun, untouched
from lockstep.state.holdings import Holding, plain_holdings
from lockstep.strategies.base import How, LaneLoss, StepStats, Training, Tuned, as_sum, scale_gradients
from lockstep.strategies.cut_strategy import CutStrategy
from lockstep.strategies.load_state import load_plain
from lockstep.strategies.stock_step import update
from lockstep.strategies.torch_pipeline.pipelining_limits import (
    WHO,
    check_counts,
    check_lanes_alike,
    form_of_lane,
    passed_tensors,
    refuse_shared,
)
from lockstep.strategies.torch_pipeline.stage_module import ModelEntry, ModelExit, StageChain, TimedStage

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.optim import Optimizer

    from lockstep.data.loader import Batch
    from lockstep.mesh import Mesh
    from lockstep.stages.survey import Survey
    from lockstep.strategies.clock import Clock


class TorchPipeline(CutStrategy):
    """PipelineStage on the cut of `pipeline`, with shapes given beforehand, and the schedule 1F1B or GPipe.

    The schedule gets the numbers of the lanes in place of a batch that it would split itself; each lane's data is here.
    torch is told not to scale gradients: a mean loss is scaled lane by lane, and any other once its weight is known.
    """

    def __init__(self, mesh: Mesh, training: Training) -> None:
        check_counts(training.settings, training.lanes)
        super().__init__(mesh, training)
        self._optimizer = self._make_optimizer(())
        self._schedule = training.schedule(self._optimizer) if training.schedule else None
        self._entry = ModelEntry(training.model, self.layers, first=mesh.stage == 0)
        self._exit = ModelExit(training.model)
        self._batch: Batch | None = None
        self._position = 0
        self._losses: list[LaneLoss] = []
        self._stage = TimedStage(
            StageChain(self._forward),
            mesh.stage,
            mesh.stages,
            torch.device(mesh.world.device),
            input_args=self._inputs,
            output_args=self._outputs,
            group=mesh.across_stages.process_group,
        )
        kind = ScheduleGPipe if self.order_of(training) == FILL_DRAIN else Schedule1F1B
        self._lanes = kind(self._stage, training.lanes, loss_fn=self._loss, scale_grads=False)
        """torch's schedule."""
        # Before torch 2.10 the outputs of all lanes are always joined.
        known = inspect.signature(self._lanes.step).parameters
        self._options: dict[str, Any] = {"return_outputs": False} if "return_outputs" in known else {}

    @property
    def optimizer(self) -> Optimizer:
        """The user's optimizer, over this stage's parameters."""
        return self._optimizer

    def order_of(self, training: Training) -> str:
        """Return the order that was asked for, or the nearest that torch has."""
        check_order(training.settings.pipeline_schedule)
        return lane_order("torch-pipeline", training.settings.pipeline_schedule)

    def look_at(self, survey: Survey, cut: list[int]) -> None:
        """Note what passes at the ends of this stage, on an example; refuse what torch cannot pass or share."""
        refuse_shared(self.ownership.shared(survey.trained))
        make = self.training.example
        if survey.example is None or make is None:
            raise BadInput(
                f"strategy torch-pipeline: {WHO} lays out its buffers by one lane: pass Trainer(example=lambda: batch)"
            )
        ends = [*(layer - 1 for layer in cut), len(survey.layers) - 1]
        passed: dict[int, Any] = {}

        def keep(number: int, call: Callable[[], Any]) -> Any:
            value = call()
            if number in ends:
                passed[number] = value
            return value

        with untouched(survey.model):
            survey.example(ChainRun(survey.model, survey.layers, keep))
        stage = self.mesh.stage
        self._form = form_of_lane(make())
        own = passed[ends[stage]]
        self._outputs = templates(own, f"the layer {self.layers[-1].name}")
        self._inputs: tuple[Tensor, ...] = (torch.zeros(1, dtype=torch.int64),)
        self._takes_tuple = False
        if stage:
            before = passed[ends[stage - 1]]
            self._inputs = templates(before, f"the layer {survey.layers[ends[stage - 1]].name}")
            self._takes_tuple = type(before) is tuple

    def step(self, batch: Batch, clock: Clock) -> StepStats:
        """Run torch's schedule over the lanes, then tell all stages the loss, and update."""
        check_lanes_alike(batch.lanes, self._form, batch.step)
        self._batch, self._position, self._losses = batch, 0, []
        self._stage.clock, self._stage.lanes = clock, [lane.lane for lane in batch.lanes]
        self._run(torch.arange(len(batch.lanes)))
        clock.lap("wait")
        total, weight, factor = self._tell(batch)
        clock.lap("exchange")
        if factor != 1.0:
            scale_gradients(self.part, factor)
        if self.training.clip is not None:
            self._clip(self.training.clip)
        update(self._optimizer, self._schedule, clock)
        mean = total / weight if weight else 0.0
        return StepStats.of(batch.step, mean, weight, clock=clock, sent=self._sent(), global_loss=mean)

    def how(self) -> How:
        """Say how the model was cut, and what runs the stages."""
        backend = self.mesh.across_stages.backend
        return How(
            exchange=f"{type(self._lanes).__name__} of {WHO} over {backend}",
            optimizer="on stages: every worker updates its own",
            cut=self._cut,
            bubble=self._bubble,
        )

    def holdings(self) -> list[Holding]:
        """Answer for this stage."""
        return plain_holdings(self.part, self._optimizer)

    def tuned(self) -> list[Tuned]:
        """Return this stage's optimizer, with the groups of the whole model."""
        return [Tuned(self._optimizer, self._schedule, self._members, dict(self.part.named_parameters()))]

    def load(self, pieces: Iterable[tuple[str, Tensor]]) -> None:
        """Keep what this stage answers for of a whole state."""
        load_plain(self.part, self._optimizer, self.own_pieces(pieces))

    def _run(self, numbers: Tensor) -> None:
        """Run the schedule; torch wraps an error of a stage in one of its own, which says less."""
        first, last = self.mesh.stage == 0, self.mesh.last_stage
        try:
            self._lanes.step(*([numbers] if first else []), target=numbers if last else None, **self._options)
        except RuntimeError as error:
            if isinstance(error.__cause__, LockstepError):
                raise error.__cause__ from None
            raise

    def _forward(self, received: tuple[Tensor, ...]) -> Any:
        """Run the next lane through this stage; the first stage draws the random numbers of one device."""
        assert self._batch is not None
        lane, step = self._batch.lanes[self._position], self._batch.step
        self._position += 1
        number = lane.lane + self.mesh.stage * self.training.lanes
        seed_lane(self.training.seed, step, number, self.world.device)
        value = received if self._takes_tuple else received[0]
        return self._entry.values(lambda model: self.call_loss(model, lane, step), value)

    def _loss(self, output: Any, number: Tensor) -> Tensor:
        """Return what a lane adds to the loss: scaled, where its weight in the batch is known."""
        assert self._batch is not None
        lane, step = self._batch.lanes[int(number)], self._batch.step
        returned = self._exit.loss(lambda model: self.call_loss(model, lane, step), output)
        loss = self.finite(as_sum(returned, lane.samples), lane, step)
        self._losses.append(loss)
        self._stage.clock.lap("forward", lane.lane)
        return loss.total * (1.0 / self._batch.samples) if loss.by_samples else loss.total

    def _tell(self, batch: Batch) -> tuple[float, float, float]:
        """Return the loss as a sum, its weight, and the factor of the gradients, which the last stage knows."""
        group = self.mesh.across_stages
        numbers = torch.zeros(3, dtype=torch.float64)
        if self.mesh.last_stage:
            total, weight = sum(one.value for one in self._losses), sum(one.weight for one in self._losses)
            scaled = all(one.by_samples for one in self._losses)
            numbers = torch.tensor([total, weight, 1.0 if scaled or not weight else 1.0 / weight], dtype=torch.float64)
        told = numbers.to(group.device)
        dist.broadcast(told, group=group.process_group, group_src=group.size - 1)
        total, weight, factor = told.tolist()
        return total, weight, factor

    def _clip(self, limit: float) -> None:
        """Scale the gradients by the norm over all stages."""
        parameters = [parameter for parameter in self.part.parameters() if parameter.grad is not None]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        squares = nn.utils.get_total_norm(gradients).double().square().to(self.mesh.across_stages.device)
        dist.all_reduce(squares, group=self.mesh.across_stages.process_group)
        nn.utils.clip_grads_with_norm_(parameters, limit, squares.sqrt().to(gradients[0].dtype if gradients else None))

    def _sent(self) -> int:
        """Return the bytes of activations and gradients that this stage sends in a step."""
        forward = [] if self.mesh.last_stage else list(self._outputs)
        backward = [one for one in self._inputs if one.requires_grad]
        return self.training.lanes * sum(one.numel() * one.element_size() for one in (*forward, *backward))


def templates(value: Any, where: str) -> tuple[Tensor, ...]:
    """Return tensors of the shapes of what a stage passes, without its elements."""
    return tuple(
        torch.empty(one.shape, dtype=one.dtype, device="meta", requires_grad=one.requires_grad)
        for one in passed_tensors(value, where)
    )
