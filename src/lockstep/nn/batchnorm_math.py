"""Batch normalisation as pure arithmetic: statistics of a part, their merge in rank order, and the gradients.

Nothing here knows of processes. A vector has one entry per channel, and a pair is two vectors: mean and variance, or
two sums. Vectors are written in place, so that a step allocates nothing but its results.

[Note: arrays] A torch operator takes microseconds however short the vector is, and several times as long after a wait
in which other processes used the caches. So vectors on the CPU are also NumPy arrays of the same memory, and arithmetic
between vectors goes through `xp`: numpy on the CPU, torch on other devices, with functions that both have.

[Note: few operators] For the same reason a step uses as few different torch operators as possible: after a wait the
first call of each takes ten times as long as the next, because its code is not in the caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from torch import Tensor

_normalise = torch.native_batch_norm  # half the overhead of the same operator under torch.ops
_normalise_into = torch.ops.aten.native_batch_norm.out
_sums = torch.ops.aten.native_batch_norm_backward.default
_statistics = torch.batch_norm_update_stats

SUMS_ONLY = [False, True, True]
DEVIATIONS = 16.0
"""A mean is near 0 if it is at most so many deviations away: rounding errors then stay below a millionth."""
Vector = Any
"""A numpy array on the CPU, a tensor elsewhere."""


class GlobalStatistics(NamedTuple):
    """The statistics of the samples of all ranks."""

    mean: Tensor
    variance: Tensor
    eps: float
    samples: int


class UnitStatistics(NamedTuple):
    """Mean 0 and variance 1: normalising with them changes nothing."""

    zero: Tensor
    one: Tensor


def statistics_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of statistics: at least single precision."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def vector_of(tensor: Tensor) -> Vector:
    """Return a tensor as a vector of the same memory; see [Note: arrays]."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    return tensor.numpy() if tensor.is_cpu else tensor


def channels_contiguous(x: Tensor) -> bool:
    """Return whether the values of a channel are contiguous on the CPU, so that centring first is faster.

    torch's statistics kernel reads such a layout value by value in double precision. Centring into the output, which is
    needed anyway, and summing there is vectorised: less than half the time, and as exact.
    """
    return x.is_cpu and x.stride(1) != 1 and x.dtype in (torch.float32, torch.float64)


def centre(x: Tensor, shift: Tensor, unit: UnitStatistics) -> Tensor:
    """Return x minus its channels' rough means, which are written to `shift`."""
    torch.sum(x, [0, *range(2, x.dim())], out=shift).mul_(x.shape[1] / x.numel())
    return _normalise(x, None, None, shift, unit.one, False, 0.0, 0.0)[0]


def centred_statistics(xp: Any, centred: Tensor, shift: Vector, unit: UnitStatistics, pair: Vector) -> None:
    """Write mean and variance of the values before they were centred."""
    _, squares, total = _sums(centred, centred, unit.one, *unit, None, None, False, 0.0, SUMS_ONLY)
    mean, variance = pair[0], pair[1]
    scale = centred.shape[1] / centred.numel()
    xp.multiply(vector_of(total), scale, out=mean)  # the rest of the mean: rounding errors only, so its square is tiny
    xp.multiply(mean, mean, out=variance)
    xp.subtract(xp.multiply(vector_of(squares), scale), variance, out=variance)
    xp.absolute(variance, out=variance)
    xp.add(mean, shift, out=mean)


def statistics(x: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of x in two passes in double precision; `like` is any vector of the result's dtype."""
    # For values of half precision the kernel returns the precision of the running statistics that it gets.
    running = None if x.dtype == like.dtype else like.clone()
    mean, variance = _statistics(x, running, running, 0.0)
    return mean, variance


def merge(xp: Any, counts: Sequence[int], pairs: Sequence[Vector], out: Vector, scratch: Sequence[Vector]) -> int:
    """Merge (count, mean, variance) of several parts: the first with the second, the result with the third, and so on.

    A variance here is M2 / count. `scratch` is two pairs. Parts without samples are skipped, whatever their vectors
    contain. Returns the number of samples; if it is 0, nothing is written.
    """
    total, accumulated = 0, None
    difference, step = scratch
    for count, pair in zip(counts, pairs, strict=True):
        if count <= 0:
            continue
        total += count
        if accumulated is None:
            accumulated = pair
            continue
        share = count / total
        xp.subtract(pair, accumulated, out=difference)
        xp.multiply(difference, share, out=step)
        xp.add(accumulated, step, out=out)
        # The difference of the means adds share * (1 - share) * difference^2 to the variance.
        between, variance = step[0], out[1]
        xp.multiply(between, difference[0], out=between)
        xp.multiply(between, 1.0 - share, out=between)
        xp.add(variance, between, out=variance)
        accumulated = out
    if accumulated is not None and accumulated is not out:
        out[:] = accumulated
    return total


def add_up(xp: Any, pairs: Sequence[Vector]) -> Vector:
    """Add all pairs to the first one, in order."""
    total = pairs[0]
    for pair in pairs[1:]:
        xp.add(total, pair, out=total)
    return total


def factors(xp: Any, variance: Vector, eps: float, weight: Vector | None, out: tuple[Vector, Vector]) -> None:
    """Write 1 / deviation, and weight / deviation."""
    inverse, scale = out
    xp.add(variance, eps, out=inverse)
    xp.sqrt(inverse, out=inverse)
    xp.reciprocal(inverse, out=inverse)
    if weight is None:
        scale[:] = inverse
    else:
        xp.multiply(inverse, weight, out=scale)


def offset(xp: Any, mean: Vector, scale: Vector, bias: Vector | None, out: Vector) -> None:
    """Write the offset for which scale * x + offset == (x - mean) * scale + bias."""
    xp.multiply(mean, scale, out=out)
    if bias is None:
        xp.negative(out, out=out)
    else:
        xp.subtract(bias, out, out=out)


def normalise(x: Tensor, weight: Tensor | None, bias: Tensor | None, merged: GlobalStatistics) -> Tensor:
    """Return (x - mean) / sqrt(variance + eps) * weight + bias in the precision of x."""
    return _normalise(x, weight, bias, merged.mean, merged.variance, False, 0.0, merged.eps)[0]


def affine(x: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
    """Return x * scale + offset."""
    return torch.addcmul(broadcast(offset, x), x, broadcast(scale, x))


def normalise_in_place(
    centred: Tensor, weight: Tensor | None, bias: Tensor | None, left: Tensor, merged: GlobalStatistics
) -> Tensor:
    """Do the same in place for centred values; `left` is the rest of the mean."""
    unused = centred.new_empty(0)
    at = (left, merged.variance, False, 0.0, merged.eps)
    _normalise_into(centred, weight, bias, *at, out=centred, save_mean=unused, save_invstd=unused)
    return centred


def gradient_sums(grad: Tensor, x: Tensor, weight: Tensor | None, merged: GlobalStatistics) -> tuple[Tensor, Tensor]:
    """Return the sums over samples of grad, and of grad * normalised x: the gradients of bias and weight."""
    _, with_x, plain = _sums(grad, x, weight, merged.mean, merged.variance, None, None, False, merged.eps, SUMS_ONLY)
    return plain, with_x


def coefficients(xp: Any, inverse: Vector, scale: Vector, samples: int, sums: Vector, out: Sequence[Vector]) -> None:
    """Write slope and offset of `input_gradient`; `sums` are those of `gradient_sums` over all ranks' samples.

    slope = -scale * sums[1] / deviation / samples,  offset = -scale * sums[0] / samples
    """
    slope, offset = out
    xp.multiply(scale, -1.0 / samples, out=offset)
    xp.multiply(inverse, sums[1], out=slope)
    xp.multiply(slope, offset, out=slope)
    xp.multiply(offset, sums[0], out=offset)


def means_near_zero(xp: Any, mean: Vector, inverse: Vector, scratch: Vector) -> bool:
    """Return whether all means are so near 0 that they may be subtracted after a product is rounded."""
    if xp is torch:
        return False  # to find out, the host would have to wait for the device
    xp.multiply(mean, inverse, out=scratch)
    return bool(xp.dot(scratch, scratch) < DEVIATIONS**2)


def input_gradient(grad: Tensor, x: Tensor, mean: Tensor, factors: Sequence[Tensor], unit: UnitStatistics) -> Tensor:
    """Return scale * (grad - mean of grad - normalised x * mean of grad * normalised x), from its `coefficients`.

    It is computed in the memory of the result:

        1 x - mean              first: otherwise large means would cancel only after rounding
        2 * slope + offset
        3 + grad * scale
    """
    scale, slope, offset = factors
    if channels_contiguous(x):
        result = _normalise(x, None, None, mean, unit.one, False, 0.0, 0.0)[0]  # 1
        normalise_in_place(result, slope, offset, unit.zero, GlobalStatistics(*unit, 0.0, 0))  # 2
    else:
        result = torch.sub(x, broadcast(mean, x))  # 1
        torch.addcmul(broadcast(offset, x), result, broadcast(slope, x), out=result)  # 2
    return _with_gradient(result, grad, scale)  # 3


def two_pass_input_gradient(grad: Tensor, x: Tensor, factors: Sequence[Tensor]) -> Tensor:
    """Do the same with an offset from which mean * slope is already subtracted."""
    scale, slope, offset = factors
    return _with_gradient(affine(x, slope, offset), grad, scale)


def _with_gradient(result: Tensor, grad: Tensor, scale: Tensor) -> Tensor:
    result.addcmul_(grad, broadcast(scale, grad))
    # In half precision the single-precision vectors made the result single, which needs a temporary tensor.
    return result if result.dtype == grad.dtype else result.to(grad.dtype)


def broadcast(vector: Tensor, x: Tensor) -> Tensor:
    """Return a view of a vector that broadcasts over the channels of x."""
    return vector if x.dim() == 2 else vector.view(-1, *(1,) * (x.dim() - 2))
