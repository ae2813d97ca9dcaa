"""Which gradients travel together: a pure function of the parameters, so that every rank finds the same plan.

    parameters, last registered first:   p9  p8  p7 | p6  p5 ... | p2  p1  p0
    buckets, as backward fills them:     first, small | full size  | the rest

A bucket is one flat tensor. Backward makes gradients roughly in the reverse order of registration, so the first
bucket is complete early; it is small, so that the first exchange begins early.

    | large tensors, each put in its place as soon as it is there | small tensors, put there at once | gap | flag |

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
"""From this size on a gradient is copied at once, while it is in the cache; smaller ones all in one call."""
ALIGN = 16
"""Elements: tensors start at cache lines, whatever their dtype."""


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """What the plan needs to know of a parameter."""

    name: str
    """As in named_parameters()."""
    shape: tuple[int, ...]
    """Its shape."""
    stride: tuple[int, ...]
    """How it lies in memory: its gradient lies alike."""
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
        """Whether it fills its memory without gaps, in whatever order of dimensions."""
        expected = 1
        for stride, length in sorted(zip(self.stride, self.shape, strict=True)):
            if length != 1 and stride != expected:
                return False
            expected *= length
        return True


@dataclass(frozen=True, kw_only=True)
class Slot:
    """The place of one parameter's gradient in its bucket."""

    index: int
    """Which parameter, by its position in named_parameters()."""
    start: int
    """Its first element."""
    large: bool
    """Whether it is copied by itself."""


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """The layout of one flat tensor."""

    dtype: torch.dtype
    """Of all its gradients."""
    device: torch.device
    """Of all its gradients."""
    slots: tuple[Slot, ...]
    """Large ones first."""
    small_from: int
    """Where the small ones begin."""
    numel: int
    """With the gap and the flag, a multiple of what was asked for."""


def plan(
    parameters: Sequence[Parameter], *, cap_bytes: int, first_bytes: int = FIRST_BYTES, multiple: int = 1
) -> list[Bucket]:
    """Return the buckets in the order in which they are exchanged.

    A bucket is closed as soon as it has reached its size, per dtype and device; the order is that in which their
    last gradients are expected.
    """
    closed: list[tuple[int, list[int]]] = []
    opened: dict[tuple[torch.dtype, torch.device], _Open] = {}
    for turn, index in enumerate(reversed(range(len(parameters)))):
        parameter = parameters[index]
        if not parameter.requires_grad:
            continue
        key = parameter.dtype, parameter.device
        one = opened.setdefault(key, _Open(limit=min(first_bytes, cap_bytes)))
        one.members.append(index)
        one.nbytes += parameter.nbytes
        one.turn = turn
        if one.nbytes >= one.limit:
            closed.append((turn, one.members))
            opened[key] = _Open(limit=cap_bytes)
    closed += [(one.turn, one.members) for one in opened.values() if one.members]
    return [_lay_out(parameters, members, multiple) for _, members in sorted(closed)]


@dataclass(kw_only=True)
class _Open:
    """A bucket that is being filled."""

    limit: int
    nbytes: int = 0
    turn: int = 0
    members: list[int] = field(default_factory=list)


def _lay_out(parameters: Sequence[Parameter], members: Sequence[int], multiple: int) -> Bucket:
    large = [index for index in members if parameters[index].nbytes >= LARGE_BYTES]
    small = [index for index in members if parameters[index].nbytes < LARGE_BYTES]
    place, small_from, slots = 0, 0, []
    for group in (large, small):
        small_from = place
        for index in group:
            slots.append(Slot(index=index, start=place, large=group is large))
            place += -(-parameters[index].numel // ALIGN) * ALIGN
    first = parameters[members[0]]
    return Bucket(
        dtype=first.dtype,
        device=first.device,
        slots=tuple(slots),
        small_from=small_from,
        numel=-(-(place + 1) // multiple) * multiple,
    )
