"""One digest for a training, whatever strategy, transport and number of workers computed it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch

from lockstep import Trainer
from lockstep.errors import BadInput
from lockstep.strategies.ddp import strategy as ddp
from tests.contract.groups import groups, started_group
from tests.contract.lane_cases import CASES, data, make, mean, net, sgd, train, train_here, world_of
from tests.devices import COLLECTIVES, alone, here, only_cpu
from tests.ranks import Ranks


@cache
def reference(name: str) -> tuple[str, tuple[float, ...]]:
    """What `single` gives: all eight lanes on one worker."""
    torch.set_num_threads(1)
    digest, losses = train(name, "single", alone(), 1)
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
    "hosts-1+1": ("gloo", [1, 1]),
    "hosts-2+2": ("gloo", [2, 2]),
    "hosts-1+2": ("gloo", [1, 2]),
    "hosts-4+4": ("gloo", [4, 4]),
    "hosts-1+1+1": ("gloo", [1, 1, 1]),
    "sections-1+1": ("gloo in sections", [1, 1]),
    "sections-2+2": ("gloo in sections", [2, 2]),
    "sections-1+2": ("gloo in sections", [1, 2]),
    "sections-4+4": ("gloo in sections", [4, 4]),
    "sections-1+1+1": ("gloo in sections", [1, 1, 1]),
}
PINNED_TORCH = (
    "shm-8",
    "gloo-3",
    "hosts-1+2",
    "hosts-4+4",
    "hosts-1+1+1",
    "sections-1+2",
    "sections-4+4",
    "sections-1+1+1",
)
"""Further and large groups, which are not tried on every torch."""
ON_DEVICES = {"pccl-2": ("pccl", [2]), "pccl-3": ("pccl", [3])}
MANY = ["sgd", "adamw", "clipped groups", "schedule", "bfloat16", "in pieces", "now and then", "whole tensors", "woven"]
NAMES = here(list(CASES), [*MANY, "two dtypes", "cifar100", "mlp", "bytes"])
WORKERS = here([1, 2, 3, 4, 8], [2, 3, 4])


@pytest.fixture(scope="module", params=groups(here(GROUPS, ON_DEVICES), PINNED_TORCH))
def group(request: pytest.FixtureRequest) -> Iterator[tuple[Ranks, list[int]]]:
    with started_group(*request.param) as group:
        yield group


@pytest.mark.thinned("group", 6)
@pytest.mark.parametrize("name", NAMES)
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


def on_another_processor(rank: int, size: int) -> str:
    """Rank 1 computes with other vectors; what all ranks then do."""
    with pytest.MonkeyPatch.context() as patch:
        if rank == 1:
            patch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "other")
        trainer = Trainer(world_of(rank, size, "gloo", [1, 1]), net, sgd(), mean, strategy="ddp", lanes=8)
    return trainer.strategy.how().optimizer


@only_cpu
def test_hosts_that_may_round_otherwise_do_not_both_update() -> None:
    with Ranks(2, "gloo") as ranks:
        assert ranks.run(on_another_processor) == ["on slices"] * 2


def started_here(rank: int, size: int) -> tuple[list[tuple[int, bool]], float]:
    """Return the sections that left in the second step, and whether backward was under way; and what was hidden."""
    trainer = make("mlp", "ddp", world_of(rank, size, COLLECTIVES, [size]), size)
    worker, begun = trainer.strategy.worker, []  # type: ignore[attr-defined]
    start = worker.exchange.start

    def noted(partials: list[torch.Tensor], part: range) -> Any:
        section = (
            next(one for one, own in enumerate(worker._partials) if own is partials) if partials[0].numel() else -1
        )
        begun.append((section, worker.flat.complete is not None))
        return start(partials, part)

    worker.exchange.start = noted
    hidden = 0.0
    for batch in itertools.islice(trainer.batches(CASES["mlp"].data(), global_batch=16), 2):
        begun.clear()
        hidden = trainer.step(batch).hidden
    return begun, hidden


def test_sums_leave_during_backward_in_one_order() -> None:
    """Over collectives: as NCCL needs it, and before the step knows of all gradients."""
    with Ranks(2, COLLECTIVES) as ranks:
        (first, hidden), (second, _) = ranks.run(started_here)
    assert first == second
    assert sorted(section for section, _ in first) == list(range(len(first)))
    assert [during for _, during in first].count(True) >= len(first) - 1 > 1, "all but the small ones"
    assert hidden > 0.0


@only_cpu
def test_a_host_that_refuses_an_arena_is_heard_of_on_all() -> None:
    with Ranks(3, "gloo") as ranks:
        said = ranks.run(refused_by_one_host, [1, 2])
    assert said == ["collectives over gloo (no arena: only 3.0 MiB may still be taken)"] * 3


@pytest.mark.thinned("workers", 2)
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("name", NAMES)
def test_threads(name: str, workers: int) -> None:
    digest, losses = reference(name)
    assert train(name, "dp", alone(), workers) == (digest, list(losses))


@pytest.mark.thinned("group", 2)
@pytest.mark.parametrize("name", ["tokens", "whole tensors", "now and then", "in pieces"])
def test_an_inexact_sum_is_near_and_the_same_on_as_many_workers(name: str, group: tuple[Ranks, list[int]]) -> None:
    """A running sum per worker, then the tree over workers: exact where each has one lane, else its own bits."""
    ranks, hosts = group
    digest, losses = reference(name)
    found = ranks.run(train_here, name, ranks.backend, hosts, False)
    threads = train(name, "dp", alone(), ranks.size, exact=False)
    assert found == [threads] * ranks.size
    assert threads[1] == pytest.approx(losses, rel=1e-3)
    # Two lanes are added up alike with and without a tree, so W = 4 of V = 8 is exact as well.
    assert (threads[0] == digest) is (ranks.size in (4, 8))


@pytest.mark.parametrize("name", ["sgd", "cifar100"])
def test_ddp_alone(name: str) -> None:
    digest, losses = reference(name)
    assert train(name, "ddp", alone(), 1) == (digest, list(losses))


@pytest.mark.parametrize("name", NAMES)
def test_again(name: str) -> None:
    digest, losses = reference(name)
    assert train(name, "single", alone(), 1) == (digest, list(losses))


def test_the_cases_differ() -> None:
    """A digest that did not see the optimizer, the clipping or the schedule would prove nothing."""
    assert len({reference(name)[0] for name in CASES}) == len(CASES)


def test_another_seed_gives_other_bits() -> None:
    digests = set()
    for seed in (0, 1):
        trainer = Trainer(alone(), net, sgd(), mean, lanes=8, seed=seed)
        trainer.step(next(trainer.batches(data(), global_batch=32)))
        digests.add(trainer.digest())
    assert len(digests) == 2
