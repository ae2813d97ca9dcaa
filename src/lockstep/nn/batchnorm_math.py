"""Batch normalisation as pure arithmetic: statistics of a part, their merge in fixed order, and the gradients.

Nothing here knows of processes. A vector has one entry per channel, a pair is two of them: mean and variance, or two
sums. Vectors are written in place, so that a step allocates nothing but its results.

[Note: arrays] Operators of torch cost microseconds each however short the vector is, and several times that after a
wait has let other processes at the caches. So vectors on the CPU are also seen as NumPy arrays of the same memory,
and arithmetic between vectors goes through `xp`: numpy there, torch on other devices, in words that both know.

[Note: few ways] For the same reason a step uses as few different operators of torch as it can: after a wait the first
call of each takes ten times as long as the next, because its code is not in the caches.
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
"""A mean is near 0 within so many deviations: what is rounded then stays below a millionth."""
Vector = Any
"""An array on the CPU, a tensor elsewhere."""


class Merged(NamedTuple):
    """The statistics of all samples, of every part."""

    mean: Tensor
    variance: Tensor
    eps: float
    samples: int


class Unit(NamedTuple):
    """Statistics that change nothing."""

    zero: Tensor
    one: Tensor


def statistics_dtype(x: Tensor) -> torch.dtype:
    """Return what statistics are kept in: never less than single precision."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def vector_of(tensor: Tensor) -> Vector:
    """Return a tensor as vectors are seen; see [Note: arrays]."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    return tensor.numpy() if tensor.is_cpu else tensor


def by_planes(x: Tensor) -> bool:
    """Say whether a channel's values lie together, so that centring first is the faster way.

    torch's statistics kernel walks such a layout value by value in double precision. Centring into the output,
    which is needed anyway, and summing there is vectorised: less than half the time, and as exact.
    """
    return x.is_cpu and x.stride(1) != 1 and x.dtype in (torch.float32, torch.float64)


def centre(x: Tensor, shift: Tensor, unit: Unit) -> Tensor:
    """Return x minus its channels' rough means, which are written to `shift`."""
    torch.sum(x, [0, *range(2, x.dim())], out=shift).mul_(x.shape[1] / x.numel())
    return _normalise(x, None, None, shift, unit.one, False, 0.0, 0.0)[0]


def centred_statistics(xp: Any, centred: Tensor, shift: Vector, unit: Unit, pair: Vector) -> None:
    """Write mean and variance of the values before they were centred."""
    _, squares, total = _sums(centred, centred, unit.one, *unit, None, None, False, 0.0, SUMS_ONLY)
    mean, variance = pair[0], pair[1]
    scale = centred.shape[1] / centred.numel()
    xp.multiply(vector_of(total), scale, out=mean)  # what is left of the mean: rounding only, its square is harmless
    xp.multiply(mean, mean, out=variance)
    xp.subtract(xp.multiply(vector_of(squares), scale), variance, out=variance)
    xp.absolute(variance, out=variance)
    xp.add(mean, shift, out=mean)


def statistics(x: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of x, two passes in double precision; `like` is any vector of their precision."""
    # Beside values of half precision the kernel answers in the precision of the running statistics it is given.
    running = None if x.dtype == like.dtype else like.clone()
    mean, variance = _statistics(x, running, running, 0.0)
    return mean, variance


def merge(xp: Any, counts: Sequence[int], pairs: Sequence[Vector], out: Vector, scratch: Sequence[Vector]) -> int:
    """Merge (count, mean, variance) of several parts, the first with the second, that with the third, and so on.

    A variance here is M2 / count. `scratch` is two pairs. Parts of no samples are passed over: their vectors may hold
    anything. Returns the number of samples; if it is 0, nothing is written.
    """
    total, so_far = 0, None
    apart, step = scratch
    for count, pair in zip(counts, pairs, strict=True):
        if count <= 0:
            continue
        total += count
        if so_far is None:
            so_far = pair
            continue
        share = count / total
        xp.subtract(pair, so_far, out=apart)
        xp.multiply(apart, share, out=step)
        xp.add(so_far, step, out=out)
        # the means' distance adds share * (1 - share) * distance^2 to the variance
        further, variance = step[0], out[1]
        xp.multiply(further, apart[0], out=further)
        xp.multiply(further, 1.0 - share, out=further)
        xp.add(variance, further, out=variance)
        so_far = out
    if so_far is not None and so_far is not out:
        out[:] = so_far
    return total


def add_up(xp: Any, pairs: Sequence[Vector]) -> Vector:
    """Add pairs into the first one, in order."""
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
    """Write what is to be added to scale * x so that it is (x - mean) * scale + bias."""
    xp.multiply(mean, scale, out=out)
    if bias is None:
        xp.negative(out, out=out)
    else:
        xp.subtract(bias, out, out=out)


def normalise(x: Tensor, weight: Tensor | None, bias: Tensor | None, merged: Merged) -> Tensor:
    """Return (x - mean) / sqrt(variance + eps) * weight + bias in the precision of x."""
    return _normalise(x, weight, bias, merged.mean, merged.variance, False, 0.0, merged.eps)[0]


def line(x: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
    """Return x * scale + offset."""
    return torch.addcmul(broadcast(offset, x), x, broadcast(scale, x))


def normalise_in_place(
    centred: Tensor, weight: Tensor | None, bias: Tensor | None, left: Tensor, merged: Merged
) -> Tensor:
    """Do the same in the memory of values that were centred; `left` is what is left of the mean."""
    nothing = centred.new_empty(0)
    at = (left, merged.variance, False, 0.0, merged.eps)
    _normalise_into(centred, weight, bias, *at, out=centred, save_mean=nothing, save_invstd=nothing)
    return centred


def gradient_sums(grad: Tensor, x: Tensor, weight: Tensor | None, merged: Merged) -> tuple[Tensor, Tensor]:
    """Return the sums over samples of grad, and of grad * normalised x: the gradients of bias and weight."""
    _, with_x, plain = _sums(grad, x, weight, merged.mean, merged.variance, None, None, False, merged.eps, SUMS_ONLY)
    return plain, with_x


def coefficients(xp: Any, inverse: Vector, scale: Vector, samples: int, sums: Vector, out: Sequence[Vector]) -> None:
    """Write slope and offset of `input_gradient`; `sums` are those of `gradient_sums` over all samples.

    slope = -scale * sums[1] / deviation / samples,  offset = -scale * sums[0] / samples
    """
    slope, offset = out
    xp.multiply(scale, -1.0 / samples, out=offset)
    xp.multiply(inverse, sums[1], out=slope)
    xp.multiply(slope, offset, out=slope)
    xp.multiply(offset, sums[0], out=offset)


def near(xp: Any, mean: Vector, inverse: Vector, scratch: Vector) -> bool:
    """Say whether every mean is within some deviations of 0, so that it may be taken off after a product is rounded."""
    if xp is torch:
        return False  # the device would have to be waited for
    xp.multiply(mean, inverse, out=scratch)
    return bool(xp.dot(scratch, scratch) < DEVIATIONS**2)


def input_gradient(grad: Tensor, x: Tensor, mean: Tensor, factors: Sequence[Tensor], unit: Unit) -> Tensor:
    """Return scale * (grad - mean of grad - normalised x * mean of grad * normalised x), by its `coefficients`.

    It is formed in the memory of the result:

        1 x - mean              first, or large means would cancel only after they were rounded
        2 * slope + offset
        3 + grad * scale
    """
    scale, slope, offset = factors
    if by_planes(x):
        result = _normalise(x, None, None, mean, unit.one, False, 0.0, 0.0)[0]  # 1
        normalise_in_place(result, slope, offset, unit.zero, Merged(*unit, 0.0, 0))  # 2
    else:
        result = torch.sub(x, broadcast(mean, x))  # 1
        torch.addcmul(broadcast(offset, x), result, broadcast(slope, x), out=result)  # 2
    return _with_gradient(result, grad, scale)  # 3


def near_input_gradient(grad: Tensor, x: Tensor, factors: Sequence[Tensor]) -> Tensor:
    """Do the same with an offset from which mean * slope is taken off already."""
    scale, slope, offset = factors
    return _with_gradient(line(x, slope, offset), grad, scale)


def _with_gradient(result: Tensor, grad: Tensor, scale: Tensor) -> Tensor:
    result.addcmul_(grad, broadcast(scale, grad))
    # Beside half precision the vectors made the result single, at the price of a temporary of that size.
    return result if result.dtype == grad.dtype else result.to(grad.dtype)


def broadcast(vector: Tensor, x: Tensor) -> Tensor:
    """Return a view of a vector that broadcasts over the channels of x."""
    return vector if x.dim() == 2 else vector.view(-1, *(1,) * (x.dim() - 2))
