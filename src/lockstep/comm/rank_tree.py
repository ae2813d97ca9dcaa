"""One order of combination for every reduction: a fixed tree over ranks, so the bits repeat and agree everywhere."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import torch

from lockstep.comm.wire import OPS
from lockstep.errors import BadInput
from lockstep.lanes.tree import Node, middle

OUT: Final = -1
"""In a plan: the caller's result."""

Combine = Callable[..., Any]

_COMBINE: Final[dict[str, Combine]] = {
    "sum": torch.add,
    "avg": torch.add,
    "product": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}


@cache
def plan(leaves: int) -> tuple[tuple[int, int, int], ...]:
    """Return the steps (to, left, right) that combine `leaves` parts as the tree says.

    Below `leaves` a number means a part, from there on a scratch buffer, and OUT the result. sum(lo, hi) is the part if
    there is one, else sum(lo, mid) + sum(mid, hi), split as in lanes/rank_tree.py.
    """
    steps: list[tuple[int, int, int]] = []

    def node(lo: int, hi: int, scratch: int) -> int:
        if hi - lo == 1:
            return lo
        mid = middle(Node(lo, hi))
        left = node(lo, mid, scratch)
        # The left side's result stays alive in `scratch` while the right side is made.
        right = node(mid, hi, scratch + 1)
        steps.append((leaves + scratch, left, right))
        return leaves + scratch

    if leaves > 1:
        node(0, leaves, 0)
        _, left, right = steps.pop()
        steps.append((OUT, left, right))
    return tuple(steps)


@cache
def scratch_count(leaves: int) -> int:
    """Return how many scratch buffers the plan uses."""
    return max([to - leaves + 1 for to, _, _ in plan(leaves) if to != OUT], default=0)


@cache
def check(op: int, dtype: torch.dtype) -> None:
    """Refuse a reduction that has no meaning for the dtype."""
    name = OPS[op]
    whole = not (dtype.is_floating_point or dtype.is_complex)
    if name in ("band", "bor", "bxor") and not whole:
        raise BadInput(f"all bitwise reductions need integers or bool, not {dtype}")
    if name in ("min", "max") and dtype.is_complex:
        raise BadInput(f"{name} has no meaning for {dtype}: complex numbers have no order")
    if name == "avg" and whole:
        raise BadInput(f"avg needs a floating dtype, not {dtype}: use sum and divide")
    if dtype.itemsize == 1 and not whole:
        raise BadInput(f"torch cannot add {dtype} on the CPU: reduce in float32, or gather")


def combiner(op: int) -> Combine:
    """Return the torch function that combines two parts."""
    return _COMBINE[OPS[op]]
