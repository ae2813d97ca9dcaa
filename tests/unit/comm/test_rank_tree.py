"""The order of combination is the design's tree, for any number of ranks."""

from __future__ import annotations

import pytest
import torch

from lockstep.comm import rank_tree
from lockstep.comm.wire import OPS
from lockstep.errors import BadInput


def text_of(leaves: int) -> str:
    """Run the plan on names, so that the order shows."""
    registers = {i: str(i) for i in range(leaves)}
    for to, left, right in rank_tree.plan(leaves):
        registers[to] = f"({registers[left]}+{registers[right]})"
    return registers[rank_tree.OUT] if leaves > 1 else registers[0]


@pytest.mark.parametrize(
    ("leaves", "expected"),
    [
        (1, "0"),
        (2, "(0+1)"),
        (3, "((0+1)+2)"),
        (4, "((0+1)+(2+3))"),
        (5, "(((0+1)+(2+3))+4)"),
        (6, "(((0+1)+(2+3))+(4+5))"),
        (7, "(((0+1)+(2+3))+((4+5)+6))"),
        (8, "(((0+1)+(2+3))+((4+5)+(6+7)))"),
    ],
)
def test_the_plan_is_the_tree(leaves: int, expected: str) -> None:
    assert text_of(leaves) == expected


@pytest.mark.parametrize("leaves", range(1, 70))
def test_scratch_grows_with_the_depth_only(leaves: int) -> None:
    assert rank_tree.scratch_count(leaves) <= max(leaves - 1, 0).bit_length()


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        ("band", torch.float32),
        ("max", torch.complex64),
        ("avg", torch.int32),
        ("sum", torch.float8_e4m3fn),
    ],
)
def test_a_reduction_without_a_meaning_is_refused(op: str, dtype: torch.dtype) -> None:
    with pytest.raises(BadInput, match=str(dtype)):
        rank_tree.check(OPS.index(op), dtype)
