"""The arithmetic of SyncBatchNorm, with no process started: parts merged are the whole."""

from __future__ import annotations

import itertools

import numpy
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from lockstep.nn import batchnorm_math as run


def parts_of(counts: list[int], channels: int, seed: int, offset: float = 0.0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randn(sum(counts), channels, generator=generator, dtype=torch.float64) + offset
    return list(torch.split(whole, counts))


def merged(parts: list[Tensor]) -> tuple[int, Tensor, Tensor]:
    """Merge by NumPy and by torch, which must agree."""
    channels = parts[0].shape[1]
    pairs = [_statistics(part) if len(part) else part.new_full((2, channels), torch.nan) for part in parts]
    counts = [len(part) for part in parts]
    out, scratch, other = torch.empty(3, 2, channels, dtype=torch.float64)
    arrays = [run.vector_of(pair) for pair in pairs]
    total = run.merge(numpy, counts, arrays, run.vector_of(out), (run.vector_of(scratch), run.vector_of(other)))
    again = torch.empty_like(out)
    assert run.merge(torch, counts, pairs, again, (scratch, other)) == total
    if total:
        assert torch.equal(again, out)
    return total, out[0], out[1]


def _statistics(part: Tensor) -> Tensor:
    return torch.stack((part.mean(0), part.var(0, correction=0)))


@settings(deadline=None)
@given(counts=st.lists(st.integers(0, 7), min_size=1, max_size=6), seed=st.integers(0, 99))
def test_merged_parts_are_the_whole(counts: list[int], seed: int) -> None:
    """Parts of no samples, whose statistics are not numbers, are passed over."""
    assume(sum(counts) > 0)
    parts = parts_of(counts, 3, seed, offset=100.0)
    total, mean, variance = merged(parts)
    whole = torch.cat(parts)
    assert total == len(whole)
    torch.testing.assert_close(mean, whole.mean(0), rtol=1e-13, atol=0)
    torch.testing.assert_close(variance, whole.var(0, correction=0), rtol=1e-10, atol=1e-14)


def test_nothing_merged_is_nothing() -> None:
    assert merged(parts_of([0, 0], 2, 0))[0] == 0


def test_the_order_of_the_merge_is_fixed() -> None:
    parts = parts_of([3, 1, 4, 2], 5, seed=1)
    _, first, _ = merged(parts)
    assert all(torch.equal(first, merged(parts)[1]) for _ in range(3))


def test_variance_of_large_means_does_not_cancel() -> None:
    """The difference of E[x^2] and E[x]^2 would be 0 or negative here."""
    x = torch.tensor([1e4, 1e4 + 0.01, 1e4 + 0.02, 1e4 + 0.03]).repeat(2, 1).T.contiguous()
    _, variance = run.statistics(x, torch.empty(2))
    torch.testing.assert_close(variance.double(), x.double().var(0, correction=0), rtol=1e-2, atol=0)


SHAPES = [(6, 3), (6, 3, 4), (4, 3, 5, 5), (2, 3, 2, 3, 4), (1, 2, 9)]
LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}


@pytest.mark.parametrize(("shape", "last"), list(itertools.product(SHAPES, [False, True])), ids=str)
def test_both_layouts_are_batchnorm(shape: tuple[int, ...], last: bool) -> None:
    """Statistics, output and gradients of one part, by planes and with channels innermost."""
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(shape, generator=generator, dtype=torch.float64) * 2 + 5
    if last and x.dim() in LAYOUTS:
        x = x.to(memory_format=LAYOUTS[x.dim()])
    channels, grad = shape[1], torch.randn(shape, generator=generator, dtype=torch.float64)
    weight, bias = torch.rand(2, channels, generator=generator, dtype=torch.float64)
    unit = run.UnitStatistics(x.new_zeros(channels), x.new_ones(channels))
    pair, shift = x.new_empty(2, channels), x.new_empty(channels)
    assert run.channels_contiguous(x) == (x.stride(1) != 1)
    if run.channels_contiguous(x):
        centred = run.centre(x, shift, unit)
        run.centred_statistics(numpy, centred, run.vector_of(shift), unit, run.vector_of(pair))
    else:
        torch.stack(run.statistics(x, shift), out=pair)
    at = run.GlobalStatistics(pair[0], pair[1], 1e-5, x.numel() // channels)
    vectors = x.new_empty(5, channels)
    mean, (inverse, scale, slope, offset, spare) = run.vector_of(pair[0]), run.vector_of(vectors)
    run.factors(numpy, run.vector_of(pair[1]), at.eps, run.vector_of(weight), (inverse, scale))
    if run.channels_contiguous(x):
        output = run.normalise_in_place(centred, weight, bias, pair[0] - shift, at)
    else:
        output = run.normalise(x, weight, bias, at)
        run.offset(numpy, mean, scale, run.vector_of(bias), out=spare)
        torch.testing.assert_close(run.affine(x, vectors[1], vectors[4]), output, rtol=1e-10, atol=1e-10)
    leaves = [tensor.clone().requires_grad_() for tensor in (x, weight, bias)]
    stock = F.batch_norm(leaves[0], None, None, leaves[1], leaves[2], training=True)
    torch.testing.assert_close(output, stock.detach(), rtol=1e-10, atol=1e-10)
    assert output.stride() == x.stride()
    torch.autograd.backward(stock, grad)
    plain, with_x = run.gradient_sums(grad, x, weight, at)
    torch.testing.assert_close([with_x, plain], [leaf.grad for leaf in leaves[1:]], rtol=1e-10, atol=1e-10)
    sums = run.vector_of(torch.stack((plain, with_x)))
    run.coefficients(numpy, inverse, scale, at.samples, sums, (slope, offset))
    found = run.input_gradient(grad, x, pair[0], list(vectors[1:4]), unit)
    torch.testing.assert_close(found, leaves[0].grad, rtol=1e-10, atol=1e-10)
    run.offset(numpy, mean, slope, offset, out=spare)
    found = run.two_pass_input_gradient(grad, x, (vectors[1], vectors[2], vectors[4]))
    torch.testing.assert_close(found, leaves[0].grad, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("mean", "expected"), [([0.5, -1.0], True), ([0.0, 20.0], False), ([-20.0, 0.0], False)])
def test_near_means_are_within_some_deviations(mean: list[float], expected: bool) -> None:
    inverse = numpy.ones(2)
    assert run.means_near_zero(numpy, numpy.array(mean), inverse, numpy.empty(2)) is expected
    assert not run.means_near_zero(torch, torch.zeros(2), torch.ones(2), torch.empty(2)), "a device is not asked"


@settings(max_examples=20, deadline=None)
@given(count=st.integers(1, 5))
def test_parts_are_added_in_order(count: int) -> None:
    parts = [torch.full((2, 3), float(10**part)) for part in range(count)]
    assert run.add_up(torch, parts)[0, 0] == sum(10**part for part in range(count))
