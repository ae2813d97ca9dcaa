"""Batch normalisation as pure arithmetic: statistics of a part, their merge in fixed order, and the gradients.

Nothing here knows of processes. Every vector has one entry per channel; `out` arguments are written in place,
so that a step allocates nothing but its results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from torch import Tensor

_normalise = torch.native_batch_norm  # half the overhead of the same operator under torch.ops
_normalise_into = torch.ops.aten.native_batch_norm.out
_sums = torch.ops.aten.native_batch_norm_backward.default
_statistics = torch.batch_norm_update_stats

SUMS_ONLY = [False, True, True]


class Merged(NamedTuple):
    """The statistics of all samples, of every part."""

    mean: Tensor
    variance: Tensor
    eps: float
    samples: int


def statistics_dtype(x: Tensor) -> torch.dtype:
    """Return what statistics are kept in: never less than single precision."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def by_planes(x: Tensor) -> bool:
    """Say whether a channel's values lie together, so that centring first is the faster way.

    torch's statistics kernel walks such a layout value by value in double precision. Centring into the output,
    which is needed anyway, and summing there is vectorised: a third of the time, and more exact for large means.
    """
    return x.is_cpu and x.stride(1) != 1 and x.dtype in (torch.float32, torch.float64)


def centre(x: Tensor, shift: Tensor, one: Tensor) -> Tensor:
    """Return x minus its channels' rough means, which are written to `shift`."""
    torch.sum(x, [0, *range(2, x.dim())], out=shift).mul_(x.shape[1] / x.numel())
    centred: Tensor = _normalise(x, None, None, shift, one, False, 0.0, 0.0)[0]
    return centred


def centred_statistics(centred: Tensor, shift: Tensor, zero: Tensor, one: Tensor, out: tuple[Tensor, Tensor]) -> None:
    """Write mean and variance of the values before they were centred."""
    mean, variance = out
    _, squares, total = _sums(centred, centred, one, zero, one, None, None, False, 0.0, SUMS_ONLY)
    scale = centred.shape[1] / centred.numel()
    torch.mul(total, scale, out=mean)  # what is left of the mean: rounding only, so the square is harmless
    torch.mul(squares, scale, out=variance).addcmul_(mean, mean, value=-1.0).clamp_(min=0.0)
    mean.add_(shift)


def statistics(x: Tensor, out: tuple[Tensor, Tensor]) -> None:
    """Write mean and variance of x, two passes in double precision."""
    # Beside values of half precision the kernel answers in the precision of the running statistics it is given.
    same = x.dtype == out[0].dtype
    mean, variance = _statistics(x, None if same else out[0], None if same else out[1], 0.0)
    out[0].copy_(mean)
    out[1].copy_(variance)


def merge(
    counts: Sequence[int], means: Sequence[Tensor], variances: Sequence[Tensor], out: tuple[Tensor, Tensor, Tensor]
) -> int:
    """Merge (count, mean, variance) of several parts, the first with the second, that with the third, and so on.

    A variance here is M2 / count. `out` is mean, variance and scratch. Parts of no samples are passed over: their
    vectors may hold anything. Returns the number of samples; if it is 0, nothing is written.
    """
    mean, variance, delta = out
    parts = [part for part, count in enumerate(counts) if count > 0]
    if not parts:
        return 0
    first = parts[0]
    total, so_far, spread = counts[first], means[first], variances[first]
    for part in parts[1:]:
        count = counts[part]
        share = count / (total + count)
        torch.sub(means[part], so_far, out=delta)
        torch.add(so_far, delta, alpha=share, out=mean)
        torch.lerp(spread, variances[part], share, out=variance)
        variance.addcmul_(delta, delta, value=share * (1.0 - share))
        total, so_far, spread = total + count, mean, variance
    if so_far is not mean:
        mean.copy_(so_far)
        variance.copy_(spread)
    return total


def add_up(parts: Sequence[Tensor]) -> Tensor:
    """Add parts into the first one, in order."""
    total = parts[0]
    for part in parts[1:]:
        total.add_(part)
    return total


def normalise(x: Tensor, weight: Tensor | None, bias: Tensor | None, merged: Merged) -> Tensor:
    """Return (x - mean) / sqrt(variance + eps) * weight + bias."""
    output: Tensor = _normalise(x, weight, bias, merged.mean, merged.variance, False, 0.0, merged.eps)[0]
    return output


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


def input_gradient(
    grad: Tensor, x: Tensor, weight: Tensor | None, merged: Merged, sums: Tensor, room: Sequence[Tensor]
) -> Tensor:
    """Return the gradient of the input: scale * (grad - mean of grad - normalised x * mean of grad * normalised x).

    `sums` are those of `gradient_sums` over all samples, `room` is three vectors of scratch; all are overwritten.
    With scale = weight / deviation and share = -scale / samples it is formed in the memory of the result as

        1 x - mean       first, or large means would cancel only after they were rounded
        2 * slope + offset     where slope = share * sums[1] / deviation, offset = share * sums[0]
        3 + grad * scale
    """
    scale, share, slope = room
    torch.add(merged.variance, merged.eps, out=scale).rsqrt_()
    torch.mul(scale, sums[1], out=slope)
    if weight is not None:
        scale.mul_(weight)
    torch.mul(scale, -1.0 / merged.samples, out=share)
    slope.mul_(share)
    offset = share.mul_(sums[0])
    if by_planes(x):
        one, zero = sums[0].fill_(1.0), sums[1].zero_()
        result: Tensor = _normalise(x, None, None, merged.mean, one, False, 0.0, 0.0)[0]  # 1
        normalise_in_place(result, slope, offset, zero, Merged(zero, one, 0.0, 0))  # 2
    else:
        result = torch.sub(x, broadcast(merged.mean, x))  # 1
        torch.addcmul(broadcast(offset, x), result, broadcast(slope, x), out=result)  # 2
    result.addcmul_(grad, broadcast(scale, x))  # 3
    # Beside half precision the vectors made the result single, at the price of a temporary of that size.
    return result if result.dtype == x.dtype else result.to(x.dtype)


def broadcast(vector: Tensor, x: Tensor) -> Tensor:
    """Return a view of a vector that broadcasts over the channels of x."""
    return vector if x.dim() == 2 else vector.view(-1, *(1,) * (x.dim() - 2))
