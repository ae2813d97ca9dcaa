"""A training that is broken off and goes on elsewhere ends with the digest of one that was not."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from tests.contract.groups import started_group
from tests.contract.lane_cases import CASES, go_on, make, train, world_of
from tests.devices import alone, here
from tests.ranks import Ranks

NAMES = ["sgd", "amsgrad", "clipped groups", "schedule", "unused", "two dtypes", "whole tensors"]
EPOCH_STEPS = 4


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@cache
def reference(name: str) -> str:
    return train(name, "single", alone(), 1)[0]


def through(rank: int, size: int, name: str, backend: str, hosts: list[int], files: list[Path]) -> tuple[str, str, str]:
    """Go on from one file, write another two steps later, and train to the end."""
    trainer = make(name, "ddp", world_of(rank, size, backend, hosts), size)
    trainer.load(files[0])
    first = trainer.digest()
    weights = [parameter.data_ptr() for parameter in trainer.model.parameters()]
    go_on(trainer, trainer.steps + 2)
    trainer.save(files[1])
    middle = trainer.digest()
    go_on(trainer, start=trainer.epoch_step)
    assert weights == [parameter.data_ptr() for parameter in trainer.model.parameters()], "they were to stay in place"
    return first, middle, trainer.digest()


GROUPS = {
    "shm-2": ("shm", [2]),
    "shm-4": ("shm", [4]),
    "gloo-3": ("gloo", [3]),
    "hosts-2+1": ("gloo", [2, 1]),
    "sections-2+1": ("gloo in sections", [2, 1]),
}


ON_DEVICES = {"pccl-3": ("pccl", [3])}


@pytest.fixture(scope="module", params=list(here(GROUPS, ON_DEVICES).values()), ids=list(here(GROUPS, ON_DEVICES)))
def group(request: pytest.FixtureRequest) -> Iterator[tuple[Ranks, list[int]]]:
    with started_group(*request.param) as group:
        yield group


@pytest.mark.thinned("group", 4)
@pytest.mark.parametrize("name", NAMES)
def test_single_then_processes_then_threads(name: str, group: tuple[Ranks, list[int]], tmp_path: Path) -> None:
    ranks, hosts = group
    files = [tmp_path / "one.safetensors", tmp_path / "two.safetensors"]
    one = make(name, "single", alone(), 1)
    go_on(one, 3)
    one.save(files[0])
    begun = one.digest()
    digests = ranks.run(through, name, ranks.backend, hosts, files)
    middle = digests[0][1]
    assert set(digests) == {(begun, middle, reference(name))}
    two = make(name, "dp", alone(), 3)
    two.load(files[1])
    assert (two.digest(), two.steps, two.epoch, two.epoch_step) == (middle, 5, 1, 1)
    go_on(two)
    assert two.digest() == reference(name)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["one.safetensors", "two.safetensors"]


@pytest.mark.thinned("stop", 2)
@pytest.mark.parametrize("stop", [1, 0, EPOCH_STEPS, 2 * EPOCH_STEPS])
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.epochs == 2])
def test_threads_then_single(name: str, stop: int, tmp_path: Path) -> None:
    """Before the first step, within an epoch, between two, and after the last."""
    one = make(name, "dp", alone(), 2)
    if stop:
        go_on(one, stop)
    one.save(tmp_path / "one.safetensors")
    two = make(name, "single", alone(), 1)
    two.load(tmp_path / "one.safetensors")
    assert two.digest() == one.digest()
    assert len(go_on(two)) == 2 * EPOCH_STEPS - stop
    assert two.digest() == reference(name)


def stock(rank: int, size: int, name: str, backend: str, files: list[Path]) -> tuple[str, str, str]:
    """What torch-ddp makes of a training that begins at a file; and of one that it broke off itself on the way."""
    world = world_of(rank, size, backend, [size])
    whole, broken, again = (make(name, "torch-ddp", world, size) for _ in range(3))
    whole.load(files[0])
    first = whole.digest()
    go_on(whole)
    broken.load(files[0])
    go_on(broken, 5)
    broken.save(files[1])
    again.load(files[1])
    go_on(again)
    return first, whole.digest(), again.digest()


@pytest.mark.parametrize("name", ["sgd", "clipped groups", "schedule", "whole tensors"])
def test_the_stock_strategy(name: str, tmp_path: Path, pair: Ranks) -> None:
    files = [tmp_path / "one.safetensors", tmp_path / "two.safetensors"]
    one = make(name, "single", alone(), 1)
    go_on(one, 3)
    one.save(files[0])
    digests = pair.run(stock, name, pair.backend, files)
    assert {first for first, _, _ in digests} == {one.digest()}
    _, whole, again = digests[0]
    assert whole == again
    back = make(name, "single", alone(), 1)
    back.load(files[1])
    assert back.steps == 5
    go_on(back)


@pytest.fixture(scope="module")
def pair() -> Iterator[Ranks]:
    with Ranks(2, "gloo") as started:
        yield started
