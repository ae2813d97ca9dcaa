"""One digest for a training, whatever strategy, transport and number of workers computed it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
import torch

from lockstep import Trainer, World
from lockstep.errors import BadInput
from lockstep.strategies.ddp import strategy as ddp
from tests.contract.lane_cases import CASES, data, mean, net, sgd, train, train_here, world_of
from tests.ranks import Ranks


@cache
def reference(name: str) -> tuple[str, tuple[float, ...]]:
    """What `single` gives: all eight lanes on one worker."""
    torch.set_num_threads(1)
    digest, losses = train(name, "single", World.alone(threads=1), 1)
    return digest, tuple(losses)


# How many ranks each host has, and the backend of all; hosts are only said to be apart, so that memory is shared
# within each and messages go between them.
GROUPS = {
    "shm-2": ("shm", [2]),
    "shm-3": ("shm", [3]),
    "shm-4": ("shm", [4]),
    "shm-8": ("shm", [8]),
    "gloo-2": ("gloo", [2]),
    "gloo-3": ("gloo", [3]),
    "hosts-2+2": ("gloo", [2, 2]),
    "hosts-1+2": ("gloo", [1, 2]),
    "hosts-4+4": ("gloo", [4, 4]),
}


@pytest.fixture(scope="module", params=list(GROUPS.values()), ids=list(GROUPS))
def group(request: pytest.FixtureRequest) -> Iterator[tuple[Ranks, list[int]]]:
    backend, hosts = request.param
    with Ranks(sum(hosts), backend) as started:
        yield started, hosts


@pytest.mark.parametrize("name", CASES)
def test_processes(name: str, group: tuple[Ranks, list[int]]) -> None:
    ranks, hosts = group
    digest, losses = reference(name)
    for found in ranks.run(train_here, name, ranks.backend, hosts):
        assert found == (digest, list(losses))


def refused_by_one_host(rank: int, size: int, hosts: list[int]) -> str:
    """Host 1 has no memory to share; what all ranks then use, and say."""

    def no_arena(*_: object) -> None:
        raise BadInput("only 3.0 MiB may still be taken")

    world = world_of(rank, size, "gloo", hosts)
    with pytest.MonkeyPatch.context() as patch:
        if world.node == 1:
            patch.setattr(ddp, "host_arena", no_arena)
        trainer = Trainer(world, net, sgd(), mean, strategy="ddp", lanes=8)
    return trainer.strategy.how().exchange


def test_a_host_that_refuses_an_arena_is_heard_of_on_all() -> None:
    with Ranks(3, "gloo") as ranks:
        said = ranks.run(refused_by_one_host, [1, 2])
    assert said == ["collectives over gloo (no arena: only 3.0 MiB may still be taken)"] * 3


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("name", CASES)
def test_threads(name: str, workers: int) -> None:
    digest, losses = reference(name)
    assert train(name, "dp", World.alone(threads=1), workers) == (digest, list(losses))


@pytest.mark.parametrize("name", ["tokens", "whole tensors", "now and then", "in pieces"])
def test_an_inexact_sum_is_near_and_the_same_on_as_many_workers(name: str, group: tuple[Ranks, list[int]]) -> None:
    """A running sum per worker, then the tree over workers: exact where each has one lane, else its own bits."""
    ranks, hosts = group
    digest, losses = reference(name)
    found = ranks.run(train_here, name, ranks.backend, hosts, False)
    threads = train(name, "dp", World.alone(threads=1), ranks.size, exact=False)
    assert found == [threads] * ranks.size
    assert threads[1] == pytest.approx(losses, rel=1e-3)
    # Two lanes are added up alike with and without a tree, so W = 4 of V = 8 is exact as well.
    assert (threads[0] == digest) is (ranks.size in (4, 8))


@pytest.mark.parametrize("name", ["sgd", "cifar100"])
def test_ddp_alone(name: str) -> None:
    digest, losses = reference(name)
    assert train(name, "ddp", World.alone(threads=1), 1) == (digest, list(losses))


@pytest.mark.parametrize("name", CASES)
def test_again(name: str) -> None:
    digest, losses = reference(name)
    assert train(name, "single", World.alone(threads=1), 1) == (digest, list(losses))


def test_the_cases_differ() -> None:
    """A digest that did not see the optimizer, the clipping or the schedule would prove nothing."""
    assert len({reference(name)[0] for name in CASES}) == len(CASES)


def test_another_seed_gives_other_bits() -> None:
    digests = set()
    for seed in (0, 1):
        trainer = Trainer(World.alone(threads=1), net, sgd(), mean, lanes=8, seed=seed)
        trainer.step(next(trainer.batches(data(), global_batch=32)))
        digests.add(trainer.digest())
    assert len(digests) == 2
