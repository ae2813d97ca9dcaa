"""PyTorch's own strategies on the same lanes: near `single`, the plain weights come back, and checkpoints go round."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lockstep import Trainer, World
from lockstep.data.loader import fetch
from tests.contract.lane_cases import CASES, LANES, data, go_on, make, mean, sgd, world_of
from tests.devices import alone, here
from tests.ranks import Ranks, on_cpu

FULL = {"mlp": 2, "cifar100": 2}
"""Steps before the first short batch; of the other cases 3."""
CUT: dict[str, Any] = {"strategy": "torch-pipeline", "cut": "4"}
"""After the dropout of `net`: only a first stage draws the random numbers of one device."""
SHARDED = ["sgd", "adamw", "tokens", "clipped groups", "schedule", "bfloat16", "unused", "two dtypes", "mlp", "bytes"]
PIPED = {
    "sgd": CUT,
    "tokens": CUT,
    "clipped groups": CUT,
    "schedule": CUT,
    "bfloat16": CUT,
    "two dtypes": {**CUT, "cut": "2"},
    "mlp": {**CUT, "cut": "5"},
    "cifar100": {**CUT, "cut": "2"},
    "in two parts": {**CUT, "cut": "1"},
}
Trained = tuple[list[tuple[float, float]], dict[str, Tensor]]


class Pair(nn.Module):
    """Passes a tensor and a skip over every cut."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(3))
        self.head = nn.Linear(32, 5)

    def forward(self, values: Any) -> Any:
        for layer in listed(self):
            values = layer(values)
        return values


def listed(model: nn.Module) -> list[Any]:
    assert isinstance(model, Pair)
    first, second, third = model.layers

    def begin(values: Tensor) -> tuple[Tensor, Tensor]:
        inner = first(values.flatten(1))
        return torch.tanh(inner), inner

    def end(pair: tuple[Tensor, Tensor]) -> Tensor:
        last: Tensor = model.head(third(pair[0]) + pair[1])
        return last

    return [begin, lambda pair: (torch.tanh(second(pair[0])), pair[1]), end]


def trainer_of(name: str, world: World, workers: int, **options: Any) -> Trainer:
    if name != "in two parts":
        return make(name, world=world, workers=workers, **options)
    return Trainer(
        world,
        Pair,
        sgd(),
        mean,
        layers=listed,
        example=lambda: fetch(data(), [0, 1, 2, 3]),
        lanes=LANES,
        workers=workers,
        **options,
    )


def steps_of(trainer: Trainer, name: str, steps: int) -> list[tuple[float, float]]:
    case = CASES.get(name, CASES["sgd"])
    done: list[tuple[float, float]] = []
    for epoch in range(case.epochs):
        for batch in trainer.batches(case.data(), global_batch=case.global_batch, epoch=epoch):
            if len(done) == steps:
                return done
            stats = trainer.step(batch)
            done.append((stats.loss, stats.weight))
    return done


def trained_here(rank: int, size: int, name: str, backend: str, options: dict[str, Any], steps: int) -> Trained:
    trainer = trainer_of(name, world_of(rank, size, backend, [size]), size, **options)
    losses = steps_of(trainer, name, steps)
    return losses, trainer.state_dict()


@cache
def reference(name: str, steps: int) -> Trained:
    torch.set_num_threads(1)
    trainer = trainer_of(name, alone(), 1, strategy="single")
    return steps_of(trainer, name, steps), on_cpu(dict(trainer.model.state_dict()))


def check_near(state: dict[str, Tensor], wanted: dict[str, Tensor], parameters: set[str]) -> None:
    """Statistics of BatchNorm are each worker's, or each lane's, own: only weights are alike."""
    assert list(state) == list(wanted)
    for name, value in wanted.items():
        assert state[name].shape == value.shape
        if name in parameters:
            torch.testing.assert_close(state[name], value, rtol=2e-3, atol=2e-4, msg=name)


def parameters_of(name: str) -> set[str]:
    model = Pair() if name == "in two parts" else CASES[name].model()
    return {parameter for parameter, _ in model.named_parameters()}


@pytest.fixture(scope="module", params=here([("gloo", 2), ("shm", 2), ("gloo", 4)], [("pccl", 2)]), ids=str)
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    backend, size = request.param
    with Ranks(size, backend) as started:
        yield started


@pytest.fixture(scope="module", params=here(["gloo", "shm"], ["pccl"]))
def stages(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    with Ranks(2, request.param) as started:
        yield started


@pytest.mark.thinned("ranks", 6)
@pytest.mark.parametrize("name", SHARDED)
def test_fsdp_is_near_one_device_also_in_a_short_batch(name: str, ranks: Ranks) -> None:
    losses, state = reference(name, 100)
    every = ranks.run(trained_here, name, ranks.backend, {"strategy": "torch-fsdp"}, 100)
    for number, (loss, weight) in enumerate(losses):
        own = [one[0][number] for one in every]
        assert sum(part for _, part in own) == weight
        assert sum(value * part for value, part in own) / weight == pytest.approx(loss, rel=2e-3)
    for _, came in every:
        check_near(came, state, parameters_of(name))


@pytest.mark.thinned("stages", 3)
@pytest.mark.parametrize("schedule", ["1f1b", "fill-drain"])
@pytest.mark.parametrize("name", PIPED)
def test_pipelining_is_near_one_device_on_every_rank(name: str, schedule: str, stages: Ranks) -> None:
    steps = FULL.get(name, 3)
    losses, state = reference(name, steps)
    options = {**PIPED[name], "pipeline_schedule": schedule}
    for own, came in stages.run(trained_here, name, stages.backend, options, steps):
        assert [weight for _, weight in own] == [weight for _, weight in losses]
        assert [loss for loss, _ in own] == pytest.approx([loss for loss, _ in losses], rel=2e-3)
        check_near(came, state, parameters_of(name))


def test_pipelining_through_a_middle_stage() -> None:
    losses, state = reference("in two parts", 3)
    with Ranks(3, "gloo") as three:
        for own, came in three.run(trained_here, "in two parts", "gloo", {**CUT, "cut": "1,2"}, 3):
            assert [loss for loss, _ in own] == pytest.approx([loss for loss, _ in losses], rel=2e-3)
            check_near(came, state, parameters_of("in two parts"))


def through(rank: int, size: int, name: str, options: dict[str, Any], files: list[Path]) -> list[str]:
    """Load what `single` wrote, train on and write; return the digests."""
    trainer = make(name, world=world_of(rank, size, "gloo", [size]), workers=size, **options)
    trainer.load(files[0])
    first = trainer.digest()
    go_on(trainer, trainer.steps + 1, name=name)
    trainer.save(files[1])
    return [first, trainer.digest()]


@pytest.mark.parametrize("name", ["clipped groups", "schedule"])
@pytest.mark.parametrize("options", [{"strategy": "torch-fsdp"}, CUT], ids=["fsdp", "pipeline"])
def test_checkpoints_go_to_and_fro(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    torch.set_num_threads(1)
    files = [tmp_path / "first.safetensors", tmp_path / "second.safetensors"]
    plain = make(name, "single", alone(), 1)
    go_on(plain, 1, name=name)
    plain.save(files[0])
    with Ranks(2, "gloo") as two:
        (first, second), other = two.run(through, name, options, files)
    assert other == [first, second]
    assert first == plain.digest()
    back = make(name, "single", alone(), 1)
    back.load(files[1])
    assert back.digest() == second


def evaluated(rank: int, size: int, options: dict[str, Any]) -> list[dict[str, float]]:
    """Evaluate between steps; seven chunks, so that ranks have different numbers of them."""
    trainer = trainer_of("in two parts", world_of(rank, size, "gloo", [size]), size, **options)
    metrics: list[dict[str, float]] = []
    for batch in trainer.batches(data(), global_batch=32):
        if len(metrics) == 2:
            break
        trainer.step(batch)
        metrics.append(trainer.evaluate(lambda model, one: {"loss": mean(model, one)}, data(), batch=15))
    return metrics


@pytest.mark.parametrize("options", [{"strategy": "torch-fsdp"}, {**CUT, "cut": "1"}], ids=["fsdp", "pipeline"])
def test_evaluation_between_steps(options: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    plain = trainer_of("in two parts", alone(), 1, strategy="single")
    wanted: list[float] = []
    for batch in plain.batches(data(), global_batch=32):
        if len(wanted) == 2:
            break
        plain.step(batch)
        wanted.append(plain.evaluate(lambda model, one: {"loss": mean(model, one)}, data(), batch=15)["loss"])
    with Ranks(2, "gloo") as two:
        for metrics in two.run(evaluated, options):
            assert [one["loss"] for one in metrics] == pytest.approx(wanted, rel=1e-3)


def short_batch(rank: int, size: int) -> None:
    trainer = make("sgd", world=world_of(rank, size, "gloo", [size]), workers=size, **CUT)
    go_on(trainer)


def test_a_short_batch_is_refused_on_every_rank() -> None:
    with Ranks(2, "gloo") as two:
        for outcome in two.attempt(short_batch):
            assert outcome.error == "BadInput"
            assert "needs lanes of one shape, and lane 0 of step 3 has" in outcome.text
