"""Sums in tree order from terms that come in turns."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lockstep.lanes.tree import Node, children
from lockstep.shards.tree_sum import TreeSum


def in_tree_order(values: list[Tensor], node: Node) -> Tensor:
    if node.hi - node.lo == 1:
        return values[node.lo]
    left, right = children(node)
    return in_tree_order(values, left) + in_tree_order(values, right)


def lanes_of(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(count)
    return [torch.randn(5, generator=generator) * 10.0**lane for lane in range(count)]


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("lanes", [1, 2, 3, 5, 8, 13, 16])
def test_turns_give_the_tree_s_sum_step_after_step(lanes: int, workers: int) -> None:
    values = lanes_of(lanes)
    wanted = in_tree_order(values, Node(0, lanes))
    one = TreeSum(lanes)
    for _ in range(3):
        for first in range(0, lanes, workers):
            one.add({lane: values[lane].clone() for lane in range(first, min(lanes, first + workers))})
        total = one.take()
        assert torch.equal(total, wanted)
        one.give_back(total)


@given(st.permutations(range(11)))
def test_any_order_gives_the_same_bits(order: list[int]) -> None:
    values = lanes_of(11)
    one = TreeSum(11)
    for lane in order:
        one.add({lane: values[lane].clone()})
    assert torch.equal(one.take(), in_tree_order(values, Node(0, 11)))


def test_few_buffers_are_held_where_lanes_come_in_turn() -> None:
    values, one, most = lanes_of(32), TreeSum(32), 0
    for first in range(0, 32, 4):
        one.add({lane: values[lane].clone() for lane in range(first, first + 4)})
        most = max(most, len(one._sums) + len(one._spare))
    assert most == 3, "one for each level above a turn: 4, 8 and 16 lanes"


def test_what_is_given_may_be_overwritten_afterwards() -> None:
    one, inbox = TreeSum(4), torch.zeros(2, 3)
    for first in (0, 2):
        inbox.fill_(1.0)
        one.add({first: inbox[0], first + 1: inbox[1]})
        inbox.fill_(7.0)
    assert torch.equal(one.take(), torch.full((3,), 4.0))
