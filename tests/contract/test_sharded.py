"""One digest for a training whose weights, gradients and optimizer state are divided over workers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lockstep import Trainer
from lockstep.shards import blocks
from tests.contract.lane_cases import CASES, data, go_on, make, mean, sgd, train, world_of
from tests.devices import alone, here, only_cpu
from tests.ranks import Ranks

NAMES = [
    "clipped groups",
    "schedule",
    "bfloat16",
    "two dtypes",
    "unused",
    "in pieces",
    "now and then",
    "chain",
    "together",
    "woven",
    "cifar100",
    "mlp",
    "bytes",
]
SHARDED: dict[str, Any] = {"strategy": "sharded"}
SMALL = 20
"""Elements of a weight that is divided here: else the models would have to be large."""


@cache
def reference(name: str) -> tuple[str, tuple[float, ...]]:
    torch.set_num_threads(1)
    digest, losses = train(name, "single", alone(), 1)
    return digest, tuple(losses)


@pytest.fixture(scope="module", params=here([2, 3, 4], [3]))
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    with Ranks(request.param, "gloo") as started:
        yield started


def sharded(name: str, rank: int, size: int, backend: str = "gloo", **options: Any) -> Trainer:
    blocks.LARGE = SMALL
    return make(name, world=world_of(rank, size, backend, [size]), workers=size, **{**SHARDED, **options})


def train_here(rank: int, size: int, name: str, backend: str) -> tuple[str, list[float]]:
    trainer = sharded(name, rank, size, backend)
    losses = go_on(trainer, name=name)
    return trainer.digest(), losses


@pytest.mark.thinned("ranks", 2)
@pytest.mark.parametrize("name", NAMES)
def test_dividing_changes_no_bit(name: str, ranks: Ranks) -> None:
    digest, losses = reference(name)
    for came in ranks.run(train_here, name, "gloo"):
        assert came == (digest, list(losses))


@only_cpu
def test_nor_does_the_arena_which_has_nothing_to_divide() -> None:
    digest, losses = reference("woven")
    with Ranks(2, "shm") as ranks:
        for came in ranks.run(train_here, "woven", "shm"):
            assert came == (digest, list(losses))


def present(rank: int, size: int, name: str) -> tuple[int, int, int, str]:
    """Return how many elements of weights there are, how many this rank holds, between steps and in an evaluation."""
    trainer = make(name, world=world_of(rank, size, "gloo", [size]), workers=size, **SHARDED)
    go_on(trainer, 1, name=name)

    def held() -> int:
        memory = {p.untyped_storage()._cdata: p.untyped_storage().nbytes() for p in trainer.model.parameters()}
        return sum(memory.values()) // 4

    evaluating: list[int] = []

    def metrics(model: nn.Module, batch: Any) -> dict[str, Tensor]:
        evaluating.append(held())
        return {"loss": mean(model, batch)}

    trainer.evaluate(metrics, CASES[name].data(), batch=7)
    whole = sum(p.numel() for p in trainer.model.parameters())
    return whole, held(), min(evaluating), trainer.strategy.how().shards


def test_a_worker_holds_its_part_only() -> None:
    with Ranks(2, "gloo") as ranks:
        for whole, between, evaluating, told in ranks.run(present, "mlp"):
            assert between < whole / 2
            assert evaluating >= whole
            assert "are divided over 2 workers" in told


def through(rank: int, size: int, name: str, options: list[dict[str, Any]], files: list[Path]) -> tuple[str, str]:
    """Go on from a file of `single`, write another, and go on from that with another strategy."""
    trainer = sharded(name, rank, size, **options[0])
    trainer.load(files[0])
    first = trainer.digest()
    go_on(trainer, trainer.steps + 2, name=name)
    trainer.save(files[1])
    other = sharded(name, rank, size, **options[1])
    other.load(files[1])
    go_on(other, start=other.epoch_step, name=name)
    return first, other.digest()


@pytest.mark.parametrize("name", ["woven", "schedule"])
@pytest.mark.parametrize(
    "options",
    [[SHARDED, {"strategy": "ddp"}], [{"strategy": "pipeline"}, SHARDED]],
    ids=["sharded to ddp", "pipeline to sharded"],
)
def test_saved_in_one_resumed_in_another(name: str, options: list[dict[str, Any]], tmp_path: Path) -> None:
    torch.set_num_threads(1)
    trainer = make(name, "single", alone(), 1)
    go_on(trainer, 2, name=name)
    files = [tmp_path / "first.safetensors", tmp_path / "second.safetensors"]
    trainer.save(files[0])
    with Ranks(2, "gloo") as ranks:
        assert ranks.run(through, name, options, files) == [(trainer.digest(), reference(name)[0])] * 2


def looked_at(rank: int, size: int) -> tuple[dict[str, float], dict[str, Tensor], float]:
    """Evaluate between steps, then train on."""
    trainer = sharded("woven", rank, size)
    go_on(trainer, 1, name="woven")
    metrics = trainer.evaluate(lambda model, batch: {"loss": mean(model, batch)}, data(), batch=7)
    loss = go_on(trainer, 2, start=1, name="woven")[-1]
    return metrics, trainer.state_dict(), loss


def test_evaluation_and_the_plain_model() -> None:
    torch.set_num_threads(1)
    plain = make("woven", "single", alone(), 1)
    go_on(plain, 1, name="woven")
    metrics = plain.evaluate(lambda model, batch: {"loss": mean(model, batch)}, data(), batch=7)
    loss = go_on(plain, 2, start=1, name="woven")[-1]
    wanted = plain.model.state_dict()
    with Ranks(3, "gloo") as ranks:
        for came, state, next_loss in ranks.run(looked_at):
            assert came == metrics
            assert next_loss == loss
            assert list(state) == list(wanted)
            assert all(torch.equal(state[name], value.cpu()) for name, value in wanted.items())


class Skipping(nn.Module):
    """A layer that some lanes skip, or, if `swaps`, two that some lanes use in another order."""

    def __init__(self, *, swaps: bool) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 5)
        self.swaps = swaps

    def forward(self, values: Tensor) -> Tensor:
        hidden = values.flatten(1)
        layers = [self.first, self.second]
        if hidden[0, 0] > 0.2:
            layers = layers[::-1] if self.swaps else layers[:1]
        for layer in layers:
            hidden = torch.tanh(layer(hidden))
        last: Tensor = self.head(hidden)
        return last


def skipping(rank: int, size: int, swaps: bool) -> str:
    if size > 1:  # in a process of its own: the reference runs in pytest's, whose other tests need the real limit
        blocks.LARGE = SMALL
    trainer = Trainer(
        world_of(rank, size, "gloo", [size]),
        lambda: Skipping(swaps=swaps),
        sgd(),
        mean,
        strategy="sharded" if size > 1 else "single",
        lanes=8,
        workers=size,
        example=lambda: [torch.zeros(4, 2, 4, 4), torch.zeros(4, dtype=torch.int64)],
    )
    for batch in trainer.batches(data(), global_batch=32):
        trainer.step(batch)
    return trainer.digest()


def test_lanes_that_skip_a_layer() -> None:
    torch.set_num_threads(1)
    with Ranks(3, "gloo") as ranks:
        assert ranks.run(skipping, False) == [skipping(0, 1, False)] * 3


def test_lanes_that_use_layers_in_another_order_are_refused() -> None:
    with Ranks(2, "gloo") as ranks:
        ranks.start(skipping, True)  # the other one waits until this one is gone
        outcome = ranks.outcomes([0])[0]
    assert outcome.error == "BadInput"
    assert "in another order" in outcome.text


def without(rank: int, size: int, what: str) -> None:
    if what == "example":
        world = world_of(rank, size, "gloo", [size])
        Trainer(world, CASES["sgd"].model, sgd(), mean, strategy="sharded", lanes=2)
    else:
        sharded("whole tensors", rank, size)


@pytest.mark.parametrize(
    ("what", "said"), [("example", "example=lambda: batch"), ("elementwise", "may look at whole tensors")]
)
def test_what_it_cannot_divide_is_refused(what: str, said: str) -> None:
    with Ranks(2, "gloo", seconds=5) as ranks:
        for outcome in ranks.attempt(without, what):
            assert outcome.error == "BadInput"
            assert said in outcome.text
