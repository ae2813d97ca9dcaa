"""One digest for a training, wherever the model is cut, in whatever order its lanes go through."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from lockstep import Trainer
from lockstep.lanes.schedule import owned_lanes
from lockstep.stages.actions import lane_order, stage_actions
from lockstep.stages.halves import Halves, halves_of
from lockstep.strategies import stage_worker
from lockstep.train.steps import joined
from tests.contract.groups import groups
from tests.contract.lane_cases import CASES, LANES, data, go_on, make, mean, sgd, train, world_of
from tests.devices import alone, here
from tests.ranks import Ranks

NAMES = [
    "fused",
    "clipped groups",
    "schedule",
    "bfloat16",
    "two dtypes",
    "whole tensors",
    "chain",
    "together",
    "woven",
    "cifar100",
    "mlp",
    "bytes",
]
GROUPS = {"shm-2": ("shm", 2), "shm-3": ("shm", 3), "shm-4": ("shm", 4), "gloo-2": ("gloo", 2), "gloo-4": ("gloo", 4)}
PINNED_TORCH = ("gloo-4",)
"""Large groups, which are not tried on every torch."""
ON_DEVICES = {"pccl-2": ("pccl", 2), "pccl-4": ("pccl", 4)}
LAYERS: dict[str, Any] = {"strategy": "layers"}
STREAMED: dict[str, Any] = {"strategy": "pipeline"}
FILLED: dict[str, Any] = {"strategy": "pipeline", "pipeline_schedule": "fill-drain"}
HALVED: dict[str, Any] = {"strategy": "pipeline", "pipeline_schedule": "zero-bubble"}


@cache
def reference(name: str) -> tuple[str, tuple[float, ...]]:
    torch.set_num_threads(1)
    digest, losses = train(name, "single", alone(), 1)
    return digest, tuple(losses)


@pytest.fixture(scope="module", params=groups(here(GROUPS, ON_DEVICES), PINNED_TORCH))
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    backend, size = request.param
    with Ranks(size, backend) as started:
        yield started


def train_here(rank: int, size: int, name: str, backend: str, options: dict[str, Any]) -> tuple[str, list[float]]:
    world = world_of(rank, size, backend, [size])
    trainer = make(name, world=world, workers=size, **options)
    losses = go_on(trainer, name=name)
    return trainer.digest(), losses


def ways(size: int) -> list[dict[str, Any]]:
    """Every strategy and order with as many stages as ranks; with four ranks, two replicas of two stages as well."""
    whole = [LAYERS, STREAMED, HALVED, FILLED]
    return whole + ([{**way, "stages": 2} for way in whole[:3]] if size == 4 else [])


@pytest.mark.thinned("ranks", 9)
@pytest.mark.parametrize("name", NAMES)
def test_a_cut_changes_no_bit(name: str, ranks: Ranks) -> None:
    digest, losses = reference(name)
    for options in ways(ranks.size):
        for came in ranks.run(train_here, name, ranks.backend, options):
            assert came == (digest, list(losses)), options


def train_early(
    rank: int, size: int, name: str, backend: str, options: dict[str, Any]
) -> tuple[tuple[str, list[float]], int]:
    """Train as if the weights were large, and count the lanes whose backward was in halves."""
    counted = []

    def counting(*given: Any) -> Halves | None:
        halves = halves_of(*given)
        counted.extend([halves] if halves is not None else [])
        return halves

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage_worker, "EARLY", 0)
        patch.setattr(stage_worker, "halves_of", counting)
        return train_here(rank, size, name, backend, options), len(counted)


@pytest.mark.thinned("ranks", 9)
@pytest.mark.parametrize("name", NAMES)
def test_nor_do_gradients_that_leave_before_those_of_the_weights(name: str, ranks: Ranks) -> None:
    digest, losses = reference(name)
    replicas = [{**STREAMED, "stages": 2}] if ranks.size == 4 else []
    for options in (STREAMED, FILLED, *replicas):
        for rank, (came, halves) in enumerate(ranks.run(train_early, name, ranks.backend, options)):
            assert came == (digest, list(losses)), options
            if rank % options.get("stages", ranks.size) == 0:
                assert halves == 0, "nobody waits for what the first stage computes"
            elif name in ("mlp", "chain"):
                assert halves, "each other stage's weights come later"


@pytest.mark.parametrize("cut", ["1", "6", "1,2", "3,5", "1,turn"])
def test_nor_does_where_it_is_cut(cut: str) -> None:
    digest, losses = reference("woven")
    with Ranks(cut.count(",") + 2, "shm") as ranks:
        for came in ranks.run(train_here, "woven", "shm", {**STREAMED, "cut": cut}):
            assert came == (digest, list(losses))


def through(
    rank: int, size: int, name: str, options: list[dict[str, Any]], files: list[Path]
) -> tuple[str, str, list[str]]:
    """Go on from a file of `single`, write another, and go on from that with another strategy."""
    world = world_of(rank, size, "shm", [size])
    trainer = make(name, world=world, workers=size, **options[0])
    trainer.load(files[0])
    first = trainer.digest()
    go_on(trainer, trainer.steps + 2, name=name)
    trainer.save(files[1])
    other = make(name, world=world, workers=size, **options[1])
    other.load(files[1])
    go_on(other, start=other.epoch_step, name=name)
    return first, other.digest(), sorted(other.optimizer_state_dict())


@pytest.mark.parametrize("name", ["woven", "whole tensors", "schedule"])
@pytest.mark.parametrize(
    "options", [[STREAMED, {"strategy": "ddp"}], [{"strategy": "ddp"}, LAYERS]], ids=["from a pipeline", "to layers"]
)
def test_saved_in_one_resumed_in_another(name: str, options: list[dict[str, Any]], tmp_path: Path) -> None:
    torch.set_num_threads(1)
    trainer = make(name, "single", alone(), 1)
    go_on(trainer, 2, name=name)
    files = [tmp_path / "first.safetensors", tmp_path / "second.safetensors"]
    trainer.save(files[0])
    with Ranks(2, "shm") as ranks:
        came = ranks.run(through, name, options, files)
    assert came == [(trainer.digest(), reference(name)[0], ["param_groups", "state"])] * 2


def recorded_here(rank: int, size: int, backend: str, options: dict[str, Any]) -> list[tuple[int, str]]:
    """Return the lanes and parts that a step records on this rank, in order; waiting left out."""
    trainer = make("chain", world=world_of(rank, size, backend, [size]), workers=size, **options)
    batch = next(trainer.batches(CASES["chain"].data(), global_batch=CASES["chain"].global_batch))
    spans = joined(trainer.step(batch).spans)
    return [(lane, name) for name, _, _, lane in spans if lane is not None and name in ("forward", "backward")]


def test_what_a_step_records_is_the_schedule(ranks: Ranks) -> None:
    """Each rank's lanes, in the order that the schedule gives its stage."""
    for options in ways(ranks.size):
        stages = options.get("stages", ranks.size)
        replicas = ranks.size // stages
        order = lane_order(options["strategy"], options.get("pipeline_schedule", "1f1b"))
        for rank, came in enumerate(ranks.run(recorded_here, ranks.backend, options)):
            own = owned_lanes(LANES, replicas, rank // stages)
            actions = stage_actions(order, stages, rank % stages, len(own))
            wanted = [(own[one.lane], "forward" if one.forward else "backward") for one in actions]
            # a lane's halves of a backward may follow each other
            assert [key for key, _ in itertools.groupby(came)] == [key for key, _ in itertools.groupby(wanted)], options


def in_cycles_here(rank: int, size: int, options: dict[str, Any]) -> list[tuple[int, ...]]:
    """Return the shapes of the tensors that a step leaves to Python's collector of cycles."""
    trainer = make("woven", world=world_of(rank, size, "shm", [size]), workers=size, **options)
    batches = trainer.batches(CASES["woven"].data(), global_batch=CASES["woven"].global_batch)
    trainer.step(next(batches))
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        trainer.step(next(batches))
        gc.collect()
        return [tuple(one.shape) for one in gc.garbage if isinstance(one, torch.Tensor)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def test_no_tensor_of_a_step_stays_until_the_collector_comes() -> None:
    with Ranks(2, "shm") as ranks:
        for options in ({"strategy": "ddp"}, LAYERS, STREAMED, HALVED, {"strategy": "sharded"}):
            assert ranks.run(in_cycles_here, options) == [[], []], options


def evaluated(rank: int, size: int, options: dict[str, Any]) -> dict[str, float]:
    trainer = make("woven", world=world_of(rank, size, "shm", [size]), workers=size, **options)
    go_on(trainer, 1, name="woven")
    return trainer.evaluate(lambda model, batch: {"loss": mean(model, batch)}, data(), batch=7)


def test_evaluation_on_every_rank() -> None:
    torch.set_num_threads(1)
    plain = make("woven", "single", alone(), 1)
    go_on(plain, 1, name="woven")
    wanted = plain.evaluate(lambda model, batch: {"loss": mean(model, batch)}, data(), batch=7)
    with Ranks(4, "shm") as ranks:
        assert ranks.run(evaluated, STREAMED) == [wanted] * 4
        assert ranks.run(evaluated, {**STREAMED, "stages": 2}) == [wanted] * 4


def plain_state(rank: int, size: int) -> dict[str, torch.Tensor]:
    trainer = make("woven", world=world_of(rank, size, "shm", [size]), workers=size, **STREAMED)
    go_on(trainer, 1, name="woven")
    return trainer.state_dict()


def test_the_plain_model_comes_back_whole() -> None:
    torch.set_num_threads(1)
    plain = make("woven", "single", alone(), 1)
    go_on(plain, 1, name="woven")
    wanted = plain.model.state_dict()
    with Ranks(3, "shm") as ranks:
        for state in ranks.run(plain_state):
            assert list(state) == list(wanted)
            assert all(torch.equal(state[name], value.cpu()) for name, value in wanted.items())


def parameters_here(rank: int, size: int) -> list[str]:
    trainer = make("woven", world=world_of(rank, size, "shm", [size]), workers=size, cut="turn", **STREAMED)
    return [name for name, parameter in trainer.model.named_parameters() if parameter.device.type != "meta"]


def test_a_stage_holds_its_own_layers_only() -> None:
    with Ranks(2, "shm") as ranks:
        first, last = ranks.run(parameters_here)
    assert "blocks.0.linear.weight" in first
    assert "blocks.0.linear.weight" not in last
    assert "head.weight" in last
    assert "head.weight" not in first
    assert set(first) & set(last) == {"table"}, "the one weight that both use"
    assert set(first) | set(last) == {name for name, _ in CASES["woven"].model().named_parameters()}


def calls_twice(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    return mean(model, batch) + mean(model, batch)


def looks_at_weights(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    return mean(model, batch) + sum(p.square().sum() for p in model.parameters())


def with_loss(rank: int, size: int, loss: Any) -> None:
    world = world_of(rank, size, "shm", [size])
    trainer = Trainer(world, CASES["sgd"].model, sgd(), loss, strategy="pipeline", lanes=2)
    trainer.step(next(trainer.batches(data(), global_batch=32)))


@pytest.mark.parametrize(
    ("loss", "said"), [(calls_twice, "just once"), (looks_at_weights, "no worker has the whole model")]
)
def test_a_loss_that_needs_the_whole_model_is_refused(loss: Any, said: str) -> None:
    with Ranks(2, "shm", seconds=5) as ranks:
        last = ranks.attempt(with_loss, loss)[-1]
    assert last.error == "BadInput"
    assert said in last.text
