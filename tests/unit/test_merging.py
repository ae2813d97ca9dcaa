"""Terms added up in blocks: the same bits as one whole addition after another."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lockstep.strategies import merging
from lockstep.strategies.merging import Merger, lazy_zeros

DTYPES = [torch.float32, torch.float64, torch.bfloat16]


def tensors(count: int, shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(count)
    return [torch.randn(shape, generator=generator).mul(10.0**at).to(dtype) for at in range(count)]


@settings(deadline=None)
@given(
    count=st.integers(1, 5),
    length=st.integers(1, 50),
    dtype=st.sampled_from(DTYPES),
    turned=st.booleans(),
    onto=st.booleans(),
)
def test_the_same_bits_as_one_by_one(count: int, length: int, dtype: torch.dtype, turned: bool, onto: bool) -> None:
    terms = tensors(count, (length, 3), dtype)
    expected = terms[0].clone()
    for term in terms[1:]:
        expected.add_(term)
    if turned:  # a gradient need not lie as its place does
        terms[0] = terms[0].t().contiguous().t()
    out = terms[-1] if onto else torch.full_like(terms[-1], 7)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merging, "BLOCK_BYTES", 64)
        Merger().add_up(terms, out)
    assert torch.equal(out, expected)


def test_an_overflow_is_not_warned_of(recwarn: pytest.WarningsRecorder) -> None:
    out = torch.zeros(4)
    Merger().add_up([torch.full((4,), 3e38)] * 2 + [out], out)
    assert torch.isinf(out).all()
    assert not recwarn.list


@pytest.mark.parametrize("dtype", DTYPES)
def test_zeros_that_can_be_written(dtype: torch.dtype) -> None:
    like = torch.ones(5000, dtype=dtype)
    found = lazy_zeros(like)
    assert (found.shape, found.dtype, int(found.count_nonzero())) == (like.shape, dtype, 0)
    assert torch.equal(found.add_(like), like)
