"""Buffers of an arena are seen by all ranks and reduced in place, in the tree's order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from lockstep.comm.arena import Arena, owned_slice
from lockstep.errors import BadInput
from tests.contract.cases import folded, made
from tests.ranks import Ranks


@pytest.fixture(scope="module", params=[1, 2, 3])
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    with Ranks(request.param) as started:
        yield started


def _arena(numel: int, size: int, dtype: torch.dtype) -> Arena:
    assert dist.group.WORLD is not None
    return Arena(dist.group.WORLD, (size + 1) * Arena.room(numel, dtype))


def all_reduce(rank: int, size: int, numel: int, dtype: torch.dtype) -> None:
    arena = _arena(numel, size, dtype)
    buffers = arena.per_rank(numel, dtype)
    for step in range(3):
        parts = [made((numel,), dtype, 10 * step + r) for r in range(size)]
        buffers[rank].copy_(parts[rank])
        arena.all_reduce(buffers)
        expected = folded(parts, "sum")
        for buffer in buffers:
            assert torch.equal(buffer, expected)
        arena.barrier()


def step_of_slices(rank: int, size: int) -> None:
    """Gradients a rank, one copy of weights, each rank updates its slice: what a strategy does."""
    numel = 100_003
    arena = _arena(numel, size, torch.float32)
    weights, gradients = arena.shared(numel), arena.per_rank(numel)
    part = owned_slice(numel, size, rank)
    total = torch.empty(len(part))
    for step in range(3):
        parts = [made((numel,), torch.float32, 10 * step + r) for r in range(size)]
        gradients[rank].copy_(parts[rank])
        before = weights.clone()
        arena.barrier()
        arena.reduce_slice(gradients, part, total)
        weights[part.start : part.stop].add_(total, alpha=-0.1)
        arena.barrier()
        assert torch.equal(weights, before.add(folded(parts, "sum"), alpha=-0.1))


def too_much(rank: int, size: int) -> None:
    arena = _arena(1000, size, torch.float32)
    arena.per_rank(1000)
    arena.shared(1000)
    with pytest.raises(BadInput, match=r"the arena has 0\.0 MiB left"):
        arena.shared(1000)


def wrong_group(rank: int, size: int) -> None:
    group = dist.new_group(list(range(size)), backend="gloo")
    with pytest.raises(BadInput, match='backend "shm"'):
        Arena(group, 1000)


@pytest.mark.parametrize("numel", [1, 1000, 300_001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_all_reduce_in_place(ranks: Ranks, numel: int, dtype: torch.dtype) -> None:
    ranks.run(all_reduce, numel, dtype)


def test_each_rank_updates_its_slice(ranks: Ranks) -> None:
    ranks.run(step_of_slices)


def test_a_full_arena_says_so(ranks: Ranks) -> None:
    ranks.run(too_much)


def test_other_backends_are_refused(ranks: Ranks) -> None:
    ranks.run(wrong_group)
