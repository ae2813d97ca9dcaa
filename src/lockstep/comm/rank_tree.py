"""Every reduction combines the ranks along one fixed tree, so the bits repeat and are the same on all ranks."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import torch

from lockstep.comm.wire import OPS
from lockstep.errors import BadInput
from lockstep.lanes.tree import Node, middle

OUT: Final = -1
"""The index of the caller's result in a plan."""

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
    """Return the steps (to, left, right) that combine `leaves` parts along the tree.

    A number below `leaves` is a part, a larger one a scratch buffer, and OUT the result. sum(lo, hi) is the part itself
    if hi - lo == 1, else sum(lo, mid) + sum(mid, hi), split as in lanes/tree.py.
    """
    steps: list[tuple[int, int, int]] = []

    def node(lo: int, hi: int, scratch: int) -> int:
        if hi - lo == 1:
            return lo
        mid = middle(Node(lo, hi))
        left = node(lo, mid, scratch)
        # The left side's result stays in `scratch` while the right side is computed.
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
    """Raise if a reduction is not defined for the dtype."""
    name = OPS[op]
    whole = not (dtype.is_floating_point or dtype.is_complex)
    if name in ("band", "bor", "bxor") and not whole:
        raise BadInput(f"bitwise reductions need an integer dtype or bool, found {dtype}: convert the tensor")
    if name in ("min", "max") and dtype.is_complex:
        raise BadInput(f"{name} is not defined for {dtype}: reduce the real and imaginary parts apart")
    if name == "avg" and whole:
        raise BadInput(f"avg needs a floating-point dtype, found {dtype}: use sum and divide")
    if dtype.itemsize == 1 and not whole:
        raise BadInput(f"torch cannot add {dtype} on the CPU: reduce in float32, or gather")


def torch_function(op: int) -> Combine:
    """Return the torch function that combines two parts."""
    return _COMBINE[OPS[op]]
