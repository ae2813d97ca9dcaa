"""The short way of small tensors gives what the long way gives: bits, errors, and a Work of one's own."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from lockstep.comm.segment_layout import SMALL_BYTES
from lockstep.comm.small import MAX_PLANS
from lockstep.errors import BadInput
from tests.contract.cases import folded, made
from tests.ranks import Ranks


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    with Ranks(request.param) as started:
        yield started


def both_ways(rank: int, size: int, dtype: torch.dtype) -> None:
    for shape in [(1,), (3, 5), (), (SMALL_BYTES // dtype.itemsize,)]:
        parts = [made(shape, dtype, r) for r in range(size)]
        short, long = parts[rank].clone(), parts[rank].clone()
        dist.all_reduce(short)
        dist.all_reduce_coalesced([long])
        assert torch.equal(short, long)
        assert torch.equal(short, folded(parts, "sum"))
        mine = parts[rank].reshape(-1)
        gathered, expected = torch.empty(size * mine.numel(), dtype=dtype), torch.cat([p.reshape(-1) for p in parts])
        dist.all_gather_into_tensor(gathered, mine)
        assert torch.equal(gathered, expected)


def marked_tensors(rank: int, size: int) -> None:
    """Bytes that are not the numbers go the long way; a gradient is asked of nobody."""
    negated = torch.full((4,), 1 + 2j).conj().imag
    assert negated.is_neg()
    dist.all_reduce(negated)
    assert negated.tolist() == [-2.0 * size] * 4
    leaf = torch.ones(8, requires_grad=True)
    dist.all_reduce(leaf)
    assert leaf.tolist() == [float(size)] * 8
    strided = torch.ones(8, 2)[:, 0]
    dist.all_reduce(strided)
    assert strided.tolist() == [float(size)] * 8


def overflow_is_quiet(rank: int, size: int) -> None:
    large = torch.full((8,), 3e38)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dist.all_reduce(large)
    assert torch.isinf(large).all() or size == 1


def refusals_give_the_turn_back(rank: int, size: int) -> None:
    """An operator that is refused, before and within the turn, keeps nobody waiting."""
    for op in (dist._make_nccl_premul_sum(2.0), dist.ReduceOp.BAND):  # type: ignore[attr-defined]
        with pytest.raises(BadInput):
            dist.all_reduce(torch.ones(8), op)
        found = torch.ones(8)
        dist.all_reduce(found)
        assert found.tolist() == [float(size)] * 8


def works_are_apart(rank: int, size: int) -> None:
    group = dist.group.WORLD
    assert group is not None
    options = dist.AllreduceOptions()
    options.asyncOp = False
    tensors = [torch.full((2,), float(i)) for i in range(4)]
    kept = [group.allreduce([t], options) for t in tensors]
    for number, work in enumerate(kept):
        work.wait()
        assert work.result()[0] is tensors[number]
        assert work.get_future().value()[0] is tensors[number]
    assert len({id(work) for work in kept}) == len(kept)


def many_shapes(rank: int, size: int) -> None:
    for count in range(1, 2 * MAX_PLANS):
        tensor = torch.ones(count)
        dist.all_reduce(tensor)
        assert tensor[-1] == size


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bfloat16, torch.bool])
def test_both_ways(ranks: Ranks, dtype: torch.dtype) -> None:
    ranks.run(both_ways, dtype)


@pytest.mark.parametrize(
    "case", [marked_tensors, overflow_is_quiet, refusals_give_the_turn_back, works_are_apart, many_shapes]
)
def test_small(ranks: Ranks, case: object) -> None:
    ranks.run(case)  # type: ignore[arg-type]
