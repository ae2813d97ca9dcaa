"""One contract for every backend: the same cases over gloo and shm, with drawn shapes, dtypes and splits."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.contract import cases
from tests.ranks import Ranks

pytestmark = pytest.mark.timeout(180)

drawn = settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
WHOLES = [torch.int8, torch.uint8, torch.int32, torch.int64]
COMPLEX = [torch.complex64, torch.complex128]
MOVED = {"gloo": [*FLOATS, *WHOLES, torch.bool], "shm": [*FLOATS, *WHOLES, torch.bool, *COMPLEX]}
"""What a backend moves; gloo's of torch 2.8 refuses complex numbers, and none gathers them."""

shapes = st.one_of(
    st.lists(st.integers(0, 7), min_size=0, max_size=3).map(tuple),
    st.sampled_from([(1,), (16_384,), (16_385,), (131_072,), (3, 5, 7_001), (1_300_001,)]),
)


def _pairs(backend: str) -> list[tuple[torch.dtype, str]]:
    """Return the dtypes and reductions that have a meaning on a backend."""
    pairs = [(d, op) for d in [torch.float32, torch.float64] for op in ("sum", "product", "min", "max")]
    pairs += [(d, op) for d in WHOLES for op in ("sum", "min", "max", "band", "bor", "bxor")]
    if backend == "shm":
        pairs += [(d, op) for d in FLOATS for op in ("sum", "avg", "min", "max")]
        pairs += [(torch.bool, op) for op in ("sum", "product", "min", "max", "band", "bor", "bxor")]
        pairs += [(torch.int16, "sum"), *((c, op) for c in COMPLEX for op in ("sum", "avg"))]
    return pairs


def _fit(ranks: Ranks, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape that the backend takes: gloo ends the process on scalars and on nothing."""
    return (1,) if ranks.backend == "gloo" and (shape == () or math.prod(shape) == 0) else shape


@drawn
@given(data=st.data(), shape=shapes)
def test_reductions(ranks: Ranks, data: Any, shape: tuple[int, ...]) -> None:
    dtype, op = data.draw(st.sampled_from(_pairs(ranks.backend)))
    shape = _fit(ranks, shape)
    ranks.run(cases.all_reduce, shape, dtype, op)
    ranks.run(cases.reduce, shape, dtype, op)


@pytest.mark.parametrize("shape", [(), (5,), (131_075,)], ids=str)
def test_reductions_of_every_kind(ranks: Ranks, shape: tuple[int, ...]) -> None:
    for dtype, op in _pairs(ranks.backend):
        ranks.run(cases.all_reduce, _fit(ranks, shape), dtype, op)
        ranks.run(cases.reduce, _fit(ranks, shape), dtype, op)


@drawn
@given(data=st.data(), shape=shapes)
def test_reduce_scatter(ranks: Ranks, data: Any, shape: tuple[int, ...]) -> None:
    pairs = [p for p in _pairs(ranks.backend) if not p[0].is_complex]
    if ranks.backend == "gloo":  # torch 2.8's adds, whatever the operation
        pairs = [p for p in pairs if p[1] == "sum"]
    dtype, op = data.draw(st.sampled_from(pairs))
    ranks.run(cases.reduce_scatter, _fit(ranks, shape), dtype, op)


@drawn
@given(data=st.data(), shape=shapes)
def test_movements(ranks: Ranks, data: Any, shape: tuple[int, ...]) -> None:
    shape, dtype = _fit(ranks, shape), data.draw(st.sampled_from(MOVED[ranks.backend]))
    ranks.run(cases.broadcast, shape, dtype)
    ranks.run(cases.all_gather, shape, dtype)
    ranks.run(cases.gather_scatter, shape, dtype)


@drawn
@given(data=st.data(), width=st.sampled_from([1, 3, 40_000]), dtype=st.sampled_from([torch.float32, torch.int64]))
def test_all_to_all_with_drawn_splits(ranks: Ranks, data: Any, width: int, dtype: torch.dtype) -> None:
    row = st.lists(st.integers(0, 5), min_size=ranks.size, max_size=ranks.size)
    splits = data.draw(st.lists(row, min_size=ranks.size, max_size=ranks.size))
    ranks.run(cases.all_to_all_single, splits, width, dtype)
    ranks.run(cases.all_to_all_even, width)


@settings(drawn, max_examples=6)
@given(shape=shapes, dtype=st.sampled_from([torch.float32, torch.int64, torch.bfloat16]))
def test_messages(ranks: Ranks, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    shape = _fit(ranks, shape)
    ranks.run(cases.messages, shape, dtype)


@pytest.mark.parametrize("case", [cases.objects, cases.asynchronous, cases.coalesced, cases.subgroups, cases.in_place])
def test_case(ranks: Ranks, case: Any) -> None:
    ranks.run(case)
