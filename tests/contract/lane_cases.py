"""Small trainings that touch everything the bits could depend on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn, optim
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from lockstep import Loss, Trainer, World
from lockstep.data.loader import fetch
from lockstep.recipe_file import load
from lockstep.recipes import bytes as bytes_
from lockstep.recipes import cifar100, mlp
from tests.devices import KIND, backend_of, device_of

LANES, GLOBAL_BATCH, SAMPLES, EPOCHS = 8, 32, 100, 2


def net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Flatten(),
        nn.Linear(6 * 16, 5),
    )


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(11)
    return TensorDataset(torch.randn(SAMPLES, 2, 4, 4, generator=generator), torch.arange(SAMPLES) % 5)


def mean(model: nn.Module, batch: list[Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def weighted(model: nn.Module, batch: list[Tensor]) -> Loss:
    """Samples count 1 to 5, as texts of different length do."""
    weights = batch[1].float() + 1
    return Loss((F.cross_entropy(model(batch[0]), batch[1], reduction="none") * weights).sum(), weights.sum())


def in_bfloat16(model: nn.Module, batch: list[Tensor]) -> Tensor:
    with torch.autocast(KIND, dtype=torch.bfloat16):
        return mean(model, batch)


def unused() -> nn.Module:
    """A parameter that never gets a gradient, and one that is frozen."""
    model = net()
    model.register_parameter("spare", nn.Parameter(torch.ones(3)))
    model.register_parameter("frozen", nn.Parameter(torch.ones(3), requires_grad=False))
    return model


def mixed() -> nn.Module:
    """Two dtypes in one model."""

    class Widen(nn.Module):
        def forward(self, values: Tensor) -> Tensor:
            return values.double()

    return nn.Sequential(nn.Flatten(), nn.Linear(32, 8), Widen(), nn.Linear(8, 5, dtype=torch.float64))


class InPieces(nn.Module):
    """A large layer used in two re-entrant checkpoints: backward hands over its gradient in two pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice, self.last = nn.Linear(32, 192), nn.Linear(192, 192), nn.Linear(192, 5)

    def forward(self, values: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(values.flatten(1)))
        for _ in range(2):
            hidden = torch.tanh(checkpoint(self.twice, hidden, use_reentrant=True))
        last: Tensor = self.last(hidden)
        return last


class Block(nn.Module):
    """BatchNorm and dropout on the way, a value beside it that passes by, and a change in place."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.linear, self.dropout = nn.BatchNorm1d(4), nn.Linear(width, width), nn.Dropout(0.2)

    def forward(self, pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        inner, skip = pair
        normed = self.norm(inner.view(len(inner), 4, -1)).flatten(1)
        return torch.relu_(self.linear(self.dropout(normed))) + inner, skip


class Woven(nn.Module):
    """What a cut can get wrong.

    A weight used twice on the first and once on the last stage, one that two inner layers share, a skip over every cut,
    a frozen layer, a frozen BatchNorm, a checkpoint, and weights that only functions use.
    """

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(32, 24) * 0.1)
        self.blocks = nn.ModuleList(Block(24) for _ in range(4))
        self.middle, self.frozen = nn.Linear(24, 24), nn.Linear(24, 24).requires_grad_(False)
        self.still = nn.BatchNorm1d(24)
        self.scale = nn.Parameter(torch.ones(24))
        self.head = nn.Linear(32, 5)
        self.offset: Tensor
        self.register_buffer("offset", torch.full((24,), 0.1))

    def start(self, values: Tensor) -> tuple[Tensor, Tensor]:
        inner = values.flatten(1) @ self.table + 0.01 * self.table.sum(0)
        return inner, inner

    def turn(self, pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        self.still.eval()
        inner = checkpoint(self.middle, pair[0], use_reentrant=False)
        return self.still(self.frozen(inner)) * self.scale, pair[1]

    def end(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        inner = pair[0] * self.scale + pair[1] + self.offset
        last: Tensor = self.head(F.linear(inner, self.table))
        return last

    def listed(self) -> list[Any]:
        first, second, third, fourth = self.blocks
        return [self.start, first, second, self.turn, third, fourth, self.end]

    def forward(self, values: Any) -> Any:
        for layer in self.listed():
            values = layer(values)
        return values


class Chain(nn.Module):
    """Layers that are found by running a lane: which must leave no trace in BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.flat, self.last = (
            nn.Conv2d(2, 6, 3, padding=1),
            nn.BatchNorm2d(6),
            nn.Flatten(),
            nn.Linear(6 * 16, 5),
        )

    def forward(self, values: Tensor) -> Tensor:
        last: Tensor = self.last(self.flat(self.norm(self.first(values))))
        return last


class Scores(NamedTuple):
    """What no stage could send to the next one."""

    scores: Tensor


class Together(nn.Module):
    """Layers that share more than what passes between them.

    One BatchNorm that two of them call, a skip that is kept in an attribute, an output that cannot be sent; and what
    its loss function reads: a plain value, a constant buffer, and a weight of one element that a layer uses too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.linears = nn.ModuleList([nn.Linear(32, 24), *(nn.Linear(24, 24) for _ in range(3)), nn.Linear(24, 5)])
        self.norm = nn.BatchNorm1d(4)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.balance: Tensor
        self.register_buffer("balance", torch.linspace(0.5, 1.5, 5))
        self.smoothing = 0.1

    def normed(self, values: Tensor) -> Tensor:
        inner: Tensor = self.norm(values.view(len(values), 4, -1))
        return torch.relu(inner.flatten(1))

    def keep(self, values: Tensor) -> Tensor:
        self.kept: Tensor = self.linears[1](values)
        scaled: Tensor = self.kept * self.scale
        return scaled

    def use(self, values: Tensor) -> Tensor:
        return torch.tanh(values) + self.kept @ self.get_parameter("linears.3.weight").T

    def listed(self) -> list[Any]:
        first, last = self.linears[0], self.linears[4]
        start = [nn.Flatten(), first]
        return [start, self.normed, self.normed, self.keep, self.use, self.linears[2], self.linears[3], last, Scores]

    def forward(self, values: Any) -> Any:
        values = self.linears[0](values.flatten(1))
        for layer in self.listed()[1:]:
            values = layer(values)
        return values


def balanced(model: Any, batch: list[Tensor]) -> Tensor:
    scores = model(batch[0]).scores
    loss = F.cross_entropy(scores, batch[1], weight=model.balance, label_smoothing=model.smoothing)
    total: Tensor = loss + 0.01 * model.scale.square()
    return total


class MinusNothing(torch.autograd.Function):
    """Zero, with a gradient of negative zeros."""

    @staticmethod
    def forward(_: Any, values: Tensor) -> Tensor:
        return values.new_zeros(values.shape)

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return torch.full_like(gradient, -0.0)


class NowAndThen(nn.Module):
    """Large tensors that some lanes have no gradient for; one whose gradients are negative zeros.

    It starts from negative zeros too: a gradient of -0.0 makes them positive, one of 0.0 does not.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.extra, self.last = nn.Linear(32, 192), nn.Linear(192, 192), nn.Linear(192, 5)
        self.still = nn.Parameter(torch.full((192, 192), -0.0))

    def forward(self, values: Tensor) -> Tensor:
        hidden: Tensor = self.first(values.flatten(1))
        if values[0, 0, 0, 0] > 0:
            hidden = hidden + torch.tanh(self.extra(hidden))
        if values[0, 0, 0, 1] > -0.7:  # in most lanes
            hidden = hidden + MinusNothing.apply(self.still).sum()  # type: ignore[no-untyped-call]
        last: Tensor = self.last(hidden)
        return last


def grouped(parameters: Any) -> optim.Optimizer:
    parameters = list(parameters)
    decayed = [p for p in parameters if p.dim() > 1]
    plain = [p for p in parameters if p.dim() <= 1]
    return optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}], lr=0.01)


def half_way(optimizer: optim.Optimizer) -> optim.lr_scheduler.LRScheduler:
    return CosineAnnealingLR(optimizer, T_max=6)


class NormScaled(optim.Optimizer):
    """Looks at whole tensors: its step is divided by the norm of each gradient."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        state = self.state[p]
                        state["seen"] = state.get("seen", torch.zeros_like(p)) + p.grad
                        p.sub_(state["seen"] / (state["seen"].norm() + 1e-3), alpha=group["lr"])


def sgd(**options: Any) -> Callable[[Any], optim.Optimizer]:
    return partial(optim.SGD, lr=0.1, **options)


def with_momentum(parameters: Any) -> optim.Optimizer:
    return optim.SGD(parameters, lr=0.1, momentum=0.9)


@dataclass(frozen=True)
class Case:
    """One training."""

    model: Callable[[], nn.Module] = net
    loss: Callable[..., Any] = mean
    optimizer: Callable[[Any], optim.Optimizer] = with_momentum
    clip: float | None = None
    schedule: Callable[[Any], Any] | None = None
    data: Callable[[], Any] = data
    global_batch: int = GLOBAL_BATCH
    epochs: int = EPOCHS
    layers: Callable[[Any], Sequence[Any]] | None = None
    """As `Recipe(stages=...)`."""


def built_in(name: str, samples: Callable[[], Any]) -> Case:
    """Return a built-in recipe on a few samples: two whole batches and a short one whose last lanes are empty."""
    recipe = load(name)
    return Case(
        model=recipe.model,
        loss=recipe.loss,
        optimizer=recipe.optimizer,
        clip=recipe.clip,
        schedule=recipe.schedule,
        data=samples,
        global_batch=16,
        epochs=1,
        layers=recipe.stages,
    )


def odd() -> nn.Module:
    """Return a model with large weights that are no whole number of vectors."""
    return nn.Sequential(
        nn.BatchNorm2d(2),
        nn.Flatten(),
        nn.Linear(32, 1031),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(1031, 33),
        nn.ReLU(),
        nn.Linear(33, 5),
    )


CASES = {
    "sgd": Case(),
    "nesterov": Case(optimizer=sgd(momentum=0.9, nesterov=True, weight_decay=1e-2)),
    "adamw": Case(optimizer=partial(optim.AdamW, lr=0.01)),
    "amsgrad": Case(optimizer=partial(optim.Adam, lr=0.01, amsgrad=True)),
    "rmsprop": Case(optimizer=partial(optim.RMSprop, lr=0.001, centered=True, momentum=0.5)),
    "adagrad": Case(optimizer=partial(optim.Adagrad, lr=0.01)),
    "tokens": Case(loss=weighted, optimizer=partial(optim.AdamW, lr=0.01)),
    "groups": Case(optimizer=grouped),
    "clipped": Case(clip=0.05),
    "clipped groups": Case(optimizer=grouped, clip=0.05, loss=weighted),
    "schedule": Case(schedule=half_way, optimizer=partial(optim.AdamW, lr=0.01)),
    "bfloat16": Case(loss=in_bfloat16),
    "unused": Case(model=unused),
    "in pieces": Case(model=InPieces),
    "now and then": Case(model=NowAndThen, optimizer=sgd()),
    "two dtypes": Case(model=mixed, loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]).float()),
    "fused": Case(model=odd, optimizer=sgd(momentum=0.9, nesterov=True, weight_decay=1e-2, fused=True)),
    "whole tensors": Case(optimizer=partial(NormScaled, lr=0.01)),
    "chain": Case(model=Chain),
    "together": Case(model=Together, layers=Together.listed, loss=balanced, clip=0.5),
    "woven": Case(model=Woven, layers=Woven.listed, optimizer=grouped, clip=0.05, loss=weighted, schedule=half_way),
    "cifar100": built_in("cifar100", lambda: cifar100.make_images(37, part=0)),
    "mlp": built_in("mlp", lambda: mlp.make_data(37, part=0)),
    "bytes": built_in("bytes", lambda: bytes_.make_texts(37, part=0)),
}


def make(name: str, strategy: str, world: World, workers: int, exact: bool = True, **options: Any) -> Trainer:
    """Return a trainer for a case."""
    case = CASES[name]
    return Trainer(
        world,
        case.model,
        case.optimizer,
        case.loss,
        strategy=strategy,
        lanes=LANES,
        workers=workers,
        clip=case.clip,
        schedule=case.schedule,
        exact=exact,
        layers=case.layers,
        example=lambda: fetch(case.data(), list(range(case.global_batch // LANES))),
        **options,
    )


def go_on(trainer: Trainer, stop: int | None = None, start: int | None = None, name: str = "sgd") -> list[float]:
    """Train from where a trainer stands, to its end or until so many steps are done; return the losses."""
    losses, case = [], CASES[name]
    for epoch in range(trainer.epoch, case.epochs):
        first = start if epoch == trainer.epoch else None
        for batch in trainer.batches(case.data(), global_batch=case.global_batch, epoch=epoch, start=first):
            stats = trainer.step(batch)
            losses.append(stats.loss if stats.global_loss is None else stats.global_loss)
            if trainer.steps == stop:
                return losses
    return losses


def train(name: str, strategy: str, world: World, workers: int, exact: bool = True) -> tuple[str, list[float]]:
    """Train a case to its end; return the digest and the losses."""
    trainer = make(name, strategy, world, workers, exact)
    losses = go_on(trainer, name=name)
    return trainer.digest(), losses


def world_of(rank: int, size: int, backend: str, hosts: list[int]) -> World:
    """Return a rank's place in a group that exists, on hosts with so many ranks each."""
    node = next(node for node in range(len(hosts)) if rank < sum(hosts[: node + 1]))
    return World(
        rank=rank,
        size=size,
        local_rank=rank - sum(hosts[:node]),
        local_size=hosts[node],
        node=node,
        nodes=len(hosts),
        host=f"host {node}",
        device=device_of(rank - sum(hosts[:node])),
        threads=1,
        backend=backend_of(backend),
        launcher="test",
    )


def train_here(
    rank: int, size: int, name: str, backend: str, hosts: list[int], exact: bool = True
) -> tuple[str, list[float]]:
    """Train as one rank of a group that exists."""
    return train(name, "ddp", world_of(rank, size, backend, hosts), size, exact)
