"""Which gradients are reduced together: a pure function of the parameters, so every rank has the same plan.

    parameters, last registered first:   p9  p8  p7 | p6  p5 ... | p2  p1  p0
    buckets, as backward fills them:     first, small | full size  | the rest

A bucket is one flat tensor. Backward computes gradients roughly in the reverse order of registration, so the first
bucket is complete early; it is small, so that the first reduction begins early.

    | large tensors, each copied as soon as it exists | small tensors, all copied in one call | gap | flag |

The flag is the last element: it is not 0 after the reduction if a rank had no gradient for one of the parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

MIB = 1 << 20
FIRST_BYTES = MIB
CAP_MB = 25.0
LARGE_BYTES = 64 * 1024
"""From this size on a gradient is copied as soon as it exists, while it is in the cache; smaller ones in one call."""
ALIGN = 16
"""Tensors start at multiples of this many elements: at cache lines, whatever their dtype."""


@dataclass(frozen=True, kw_only=True)
class ParameterSpec:
    """What the bucket plan needs to know of a parameter."""

    name: str
    """As in named_parameters()."""
    shape: tuple[int, ...]
    """Its shape."""
    stride: tuple[int, ...]
    """Its memory layout, which its gradient shares."""
    dtype: torch.dtype
    """Its dtype: a bucket has one."""
    device: torch.device
    """Its device: a bucket has one."""
    requires_grad: bool = True
    """Whether it has a gradient at all."""

    @property
    def numel(self) -> int:
        """How many elements it has."""
        count = 1
        for length in self.shape:
            count *= length
        return count

    @property
    def nbytes(self) -> int:
        """How many bytes it has."""
        return self.numel * self.dtype.itemsize

    @property
    def is_dense(self) -> bool:
        """Whether it fills its memory without gaps, in any order of dimensions."""
        expected = 1
        for stride, length in sorted(zip(self.stride, self.shape, strict=True)):
            if length != 1 and stride != expected:
                return False
            expected *= length
        return True


@dataclass(frozen=True, kw_only=True)
class BucketSlot:
    """The position of one parameter's gradient in its bucket."""

    index: int
    """Which parameter, by its position in named_parameters()."""
    start: int
    """Its first element."""
    large: bool
    """Whether it is copied alone."""


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """The layout of one flat tensor."""

    dtype: torch.dtype
    """Of all its gradients."""
    device: torch.device
    """Of all its gradients."""
    slots: tuple[BucketSlot, ...]
    """Large ones first."""
    small_from: int
    """Where the small ones begin."""
    numel: int
    """Length, including the gap and the flag; a multiple of `multiple`."""


def plan(
    parameters: Sequence[ParameterSpec], *, cap_bytes: int, first_bytes: int = FIRST_BYTES, multiple: int = 1
) -> list[Bucket]:
    """Return the buckets in the order in which they are reduced.

    Each dtype and device has its own buckets. A bucket is closed as soon as it has reached its size; buckets are in
    the order in which their last gradients are expected.
    """
    closed: list[tuple[int, list[int]]] = []
    opened: dict[tuple[torch.dtype, torch.device], _Open] = {}
    for position, index in enumerate(reversed(range(len(parameters)))):
        parameter = parameters[index]
        if not parameter.requires_grad:
            continue
        key = parameter.dtype, parameter.device
        bucket = opened.setdefault(key, _Open(limit=min(first_bytes, cap_bytes)))
        bucket.members.append(index)
        bucket.nbytes += parameter.nbytes
        bucket.position = position
        if bucket.nbytes >= bucket.limit:
            closed.append((position, bucket.members))
            opened[key] = _Open(limit=cap_bytes)
    closed += [(bucket.position, bucket.members) for bucket in opened.values() if bucket.members]
    return [_lay_out(parameters, members, multiple) for _, members in sorted(closed)]


@dataclass(kw_only=True)
class _Open:
    """A bucket that is being filled."""

    limit: int
    nbytes: int = 0
    position: int = 0
    members: list[int] = field(default_factory=list)


def _lay_out(parameters: Sequence[ParameterSpec], members: Sequence[int], multiple: int) -> Bucket:
    large = [index for index in members if parameters[index].nbytes >= LARGE_BYTES]
    small = [index for index in members if parameters[index].nbytes < LARGE_BYTES]
    end, small_from, slots = 0, 0, []
    for group in (large, small):
        small_from = end
        for index in group:
            slots.append(BucketSlot(index=index, start=end, large=group is large))
            end += -(-parameters[index].numel // ALIGN) * ALIGN
    first = parameters[members[0]]
    return Bucket(
        dtype=first.dtype,
        device=first.device,
        slots=tuple(slots),
        small_from=small_from,
        numel=-(-(end + 1) // multiple) * multiple,
    )
