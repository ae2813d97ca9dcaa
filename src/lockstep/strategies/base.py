"""The contract of a strategy: run one step's lanes on a mesh, and say which part of the state it holds."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from lockstep.data.loader import LaneBatch, to_device
from lockstep.errors import BadInput, LockstepError, NotFinite
from lockstep.lanes.rng import seed_lane
from lockstep.recipe import LayerList, Loss, LossFunction, OptimizerFactory, ScheduleFactory
from lockstep.state.holdings import Holding, plain_holdings
from lockstep.strategies.one_sample import explain_one_sample, is_one_sample_error
from lockstep.strategies.stats import How as How
from lockstep.strategies.stats import StepStats as StepStats
from lockstep.torch_compat.tensors import foreach_mul_

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from lockstep.data.loader import Batch
    from lockstep.mesh import Mesh
    from lockstep.settings import Settings
    from lockstep.strategies.clock import Clock


@dataclass(frozen=True, kw_only=True)
class Training:
    """What a strategy trains, and how; the same for all of them."""

    model: nn.Module
    """The plain model, on its device."""
    optimizer: OptimizerFactory
    """Makes the optimizer."""
    loss: LossFunction
    """A mean over a batch, or `Loss(total, weight)`."""
    settings: Settings
    """How it is trained, whole: what the command line, or a loop's author, set."""
    synchronised: bool = False
    """Whether workers meet inside the model, so that each must run as many lanes as the others."""
    clip: float | None = None
    """Scale the gradient so that its norm is at most this."""
    schedule: ScheduleFactory | None = None
    """Makes a learning-rate schedule from the optimizer; it advances once a step."""
    layers: LayerList | None = None
    """Lists the model's layers in the order of their calls, where it is to be cut and is no chain of modules."""
    example: Callable[[], Any] | None = None
    """Makes a batch of one lane, to measure a model's layers on before it is cut."""

    @property
    def seed(self) -> int:
        """Of dropout."""
        return self.settings.seed or 0

    @property
    def lanes(self) -> int:
        """Slices of the global batch."""
        return self.settings.lanes or self.settings.workers

    @property
    def workers(self) -> int:
        """Workers of the whole world; more than the world's processes where a process has several."""
        return self.settings.workers

    @property
    def exact(self) -> bool:
        """Whether gradients are added up in the tree over lanes; else each worker adds up its own one after another."""
        return self.settings.exact

    @property
    def units(self) -> int:
        """What the tree is over: lanes, or, where a replica's lanes are one running sum, replicas."""
        return self.lanes if self.exact else self.settings.replicas


class Tuned(NamedTuple):
    """An optimizer, its schedule, and what it updates by name."""

    optimizer: Optimizer
    """The user's own object."""
    schedule: LRScheduler | None
    """The user's own object, if there is one."""
    members: list[list[str]]
    """The trained parameters of each group, by name."""
    whole: dict[str, nn.Parameter]
    """Those whose state the optimizer keeps under the parameter itself; empty where it works on slices."""
    together: Sequence[Sequence[str]] = ()
    """Where it works on slices: the parameters that are updated as one tensor, so that they have one counter."""


@dataclass(frozen=True)
class LaneLoss:
    """One lane's loss as a sum with a weight."""

    total: Tensor
    """The sum, with its graph."""
    given: float | Tensor
    """Its weight: samples, or what the loss function said."""
    by_samples: bool
    """Whether the weight is the number of samples, and so known before forward."""

    @cached_property
    def value(self) -> float:
        """The sum as a number: on an accelerator the host waits for it."""
        return float(self.total.detach())

    @cached_property
    def weight(self) -> float:
        """The weight as a number: on an accelerator the host may wait for it."""
        return float(self.given)

    def note(self, row: Tensor) -> None:
        """Write both to a row of a table, which may be on the same accelerator: then nobody waits."""
        row[0].copy_(self.total.detach())
        row[1].copy_(self.given.detach()) if isinstance(self.given, Tensor) else row[1].fill_(self.given)


class Strategy(ABC):
    """Trains one model on a mesh, a step at a time."""

    lanes_in_turn = False
    """Whether lanes are dealt out to replicas in turn; else a replica has contiguous ones."""
    reads_later = False
    """Whether losses on an accelerator are read once a step, by `ExactWorker`, and checked there."""

    def __init__(self, mesh: Mesh, training: Training) -> None:
        self.mesh, self.world = mesh, mesh.world
        self.training = training

    @property
    @abstractmethod
    def optimizer(self) -> Optimizer:
        """The optimizer in use."""

    @abstractmethod
    def step(self, batch: Batch, clock: Clock) -> StepStats:
        """Train on this worker's part of one global batch, and book its time on the clock."""

    def how(self) -> How:
        """Say how this strategy runs here."""
        return How()

    @property
    def module(self) -> nn.Module:
        """The plain model with its present weights, for evaluation and saving."""
        return self.training.model

    def holdings(self) -> list[Holding]:
        """Say for which part of the plain state this process answers, see [Note: one answer]; it asks nobody.

        Where every rank has all of it, the first answers.
        """
        return plain_holdings(self.module, self.optimizer) if self.world.rank == 0 else []

    @abstractmethod
    def tuned(self) -> list[Tuned]:
        """Return the optimizers of this process, one per worker, for their settings."""

    def check_state(self, held: Mapping[str, Mapping[str, tuple[int, ...]]], where: str) -> None:  # noqa: B027
        """Refuse optimizer state, given as shapes by key and parameter, that this strategy cannot hold."""

    @abstractmethod
    def load(self, pieces: Iterable[tuple[str, Tensor]]) -> None:
        """Take over a whole state, tensor by tensor under the plain names, whichever strategy wrote it; checked before.

        Every process gets every tensor, and keeps what it holds of it.
        """

    def prepare_evaluation(self) -> None:  # noqa: B027 - most strategies have nothing to do here
        """Bring this rank's copy of the model to the state that all ranks evaluate."""

    def finish_evaluation(self) -> None:  # noqa: B027
        """Return from there, to go on training."""

    def forward_only(self, function: Callable[[nn.Module, Any], Any], data: Any) -> Any:
        """Call a function with the model and some data, without training; None where another stage has its result."""
        return function(self.module, data)

    def example_run(self) -> Callable[[nn.Module], Tensor] | None:
        """Return a function that runs the loss on one lane, with any model; None where there is no such lane."""
        make = self.training.example
        if make is None:
            return None

        def run(model: nn.Module) -> Tensor:
            seed_lane(self.training.seed, 0, 0, self.world.device)
            return as_sum(self.training.loss(model, to_device(make(), self.world.device)), 1).total

        return run

    def lane_loss(self, model: nn.Module, lane: LaneBatch, step: int) -> LaneLoss:
        """Run one lane forward from its own random stream."""
        seed_lane(self.training.seed, step, lane.lane, self.world.device)
        return self.checked_loss(model, lane, step)

    def checked_loss(self, model: nn.Module, lane: LaneBatch, step: int) -> LaneLoss:
        """Run one lane forward; stop the run if its loss is not finite."""
        return self.finite(as_sum(self.call_loss(model, lane, step), lane.samples), lane, step)

    def call_loss(self, model: nn.Module, lane: LaneBatch, step: int) -> Tensor | Loss:
        """Call the loss function; explain what BatchNorm says of a lane of one sample."""
        try:
            return self.training.loss(model, to_device(lane.data, self.device_of(model)))
        except ValueError as error:
            if lane.samples == 1 and is_one_sample_error(error):
                text = explain_one_sample(lane=lane.lane, step=step, batch=None, lanes=self.training.lanes)
                raise LockstepError(text) from error
            raise

    def device_of(self, model: nn.Module) -> str:
        """Return where a model of this process computes."""
        return self.world.device

    def lane_device(self, lane: int) -> str:
        """Return where a lane of this process is computed."""
        return self.world.device

    def finite(self, loss: LaneLoss, lane: LaneBatch, step: int) -> LaneLoss:
        """Return a lane's loss; stop the run if it is no number."""
        if self.reads_later and self.world.device != "cpu":
            return loss
        if not math.isfinite(loss.value):
            raise not_finite(loss.value, step, lane.lane, f", rank {self.world.rank}")
        return loss


def as_sum(returned: object, samples: int) -> LaneLoss:
    """Turn what a loss function returned into a sum and a weight; a mean weighs its samples."""
    if isinstance(returned, Loss):
        given = returned.weight
        if not (isinstance(given, Tensor) and not given.is_cpu):  # else the host would wait; ExactWorker checks it
            check_weight(float(given))
        return LaneLoss(returned.total, given, False)
    if not isinstance(returned, Tensor) or returned.numel() != 1:
        described = f"shape {tuple(returned.shape)}" if isinstance(returned, Tensor) else f"{returned!r:.60}"
        raise BadInput(f"loss(model, batch) must return a scalar tensor or Loss(total, weight), not {described}")
    return LaneLoss(returned * samples, float(samples), True)


def not_finite(value: float, step: int, lane: int, where: str = "") -> NotFinite:
    """Return the error of a loss that is no number."""
    return NotFinite(
        f"the loss is {value} at step {step}, lane {lane}{where}: lower the learning rate, clip gradients, or look at "
        "this batch"
    )


def check_weight(weight: float) -> None:
    """Refuse a weight that no lane can have."""
    if not weight >= 0.0:
        raise BadInput(f"Loss(total, weight={weight}): a weight cannot be negative")


def backward(total: Tensor) -> None:
    """Add this lane's gradients to `.grad`."""
    torch.autograd.backward(total)


def scale_gradients(model: nn.Module, factor: float) -> None:
    """Multiply every gradient in place, in one fused call."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    if gradients and factor != 1.0:
        foreach_mul_(gradients, factor)
