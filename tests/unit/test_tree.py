"""The tree over lanes: any number of workers adds the same numbers in the same order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.lanes.schedule import owned_lanes
from lockstep.lanes.tree import Fold, Node, additions, children, cover, folding, merge_plan, running_sum

LANES = st.integers(1, 40)


def spelled(node: Node) -> str:
    """Return the sum over a node with its brackets: the definition."""
    if node.hi - node.lo == 1:
        return str(node.lo)
    left, right = children(node)
    return f"({spelled(left)}+{spelled(right)})"


def check_waits(folds: list[Fold]) -> None:
    """A lane waits if it is put down and the next one is added to it, and only then."""
    followers = [*((fold.buffer, fold.fresh) for fold in folds[1:]), None]
    for fold, follower in zip(folds, followers, strict=True):
        assert fold.waits == (fold.fresh and follower == (fold.buffer, False))


def folded(node: Node) -> str:
    """Return the same from the buffers of a worker that folds its lanes one by one."""
    folds, count = folding(node)
    check_waits(folds)
    buffers = [""] * count
    for lane, fold in zip(range(node.lo, node.hi), folds, strict=True):
        value = str(lane)
        if fold.fresh:
            assert not buffers[fold.buffer], "a buffer in use was overwritten"
        buffers[fold.buffer] = value if fold.fresh else f"({buffers[fold.buffer]}+{value})"
        for left, right in fold.merges:
            buffers[left], buffers[right] = f"({buffers[left]}+{buffers[right]})", ""
    assert not any(buffers[1:])
    return buffers[0]


@given(LANES, st.integers(1, 40))
def test_every_split_gives_the_same_brackets(lanes: int, workers: int) -> None:
    nodes = [node for rank in range(workers) for node in cover(lanes, owned_lanes(lanes, workers, rank))]
    assert [node.lo for node in nodes] == [0, *(node.hi for node in nodes[:-1])]
    values = [folded(node) for node in nodes]
    for left, right in additions(lanes, nodes):
        values[left] = f"({values[left]}+{values[right]})"
    assert values[0] == spelled(Node(0, lanes))


@given(LANES, st.integers(1, 12), st.data())
def test_hosts_that_add_up_their_own_first_agree(lanes: int, workers: int, data: st.DataObject) -> None:
    """Whatever ranks a host has, it adds up what it can, and the rest is added up over hosts."""
    host_of = data.draw(st.lists(st.integers(0, 3), min_size=workers, max_size=workers))
    values: dict[Node, str] = {}
    for host in dict.fromkeys(host_of):
        ranks = [rank for rank in range(workers) if host_of[rank] == host]
        nodes = [node for rank in ranks for node in cover(lanes, owned_lanes(lanes, workers, rank))]
        parts = [folded(node) for node in nodes]
        steps, left = merge_plan(lanes, nodes)
        for one, other in steps:
            parts[one] = f"({parts[one]}+{parts[other]})"
        assert [node for node, _ in left] == sorted(node for node, _ in left)
        values |= {node: parts[position] for node, position in left}
    partials = sorted(values)
    total = [values[node] for node in partials]
    for one, other in additions(lanes, partials):
        total[one] = f"({total[one]}+{total[other]})"
    assert total[0] == spelled(Node(0, lanes))


@given(LANES)
def test_a_running_sum_has_one_buffer(lanes: int) -> None:
    folds, count = running_sum(lanes)
    check_waits(folds)
    assert (count, {fold.buffer for fold in folds}) == (1, {0})
    assert [fold.fresh for fold in folds] == [True] + [False] * (lanes - 1)


def test_the_tree_by_hand() -> None:
    assert spelled(Node(0, 8)) == "(((0+1)+(2+3))+((4+5)+(6+7)))"
    assert spelled(Node(0, 5)) == "(((0+1)+(2+3))+4)"
    assert spelled(Node(0, 3)) == "((0+1)+2)"


@pytest.mark.parametrize(
    ("lanes", "workers", "most"), [(8, 2, 1), (8, 4, 1), (8, 8, 1), (8, 3, 2), (16, 1, 1), (7, 2, 2)]
)
def test_a_power_of_two_sends_one_partial_each(lanes: int, workers: int, most: int) -> None:
    assert max(len(cover(lanes, owned_lanes(lanes, workers, rank))) for rank in range(workers)) == most


@pytest.mark.parametrize(("lanes", "buffers"), [(1, 1), (2, 1), (4, 2), (8, 3), (64, 6)])
def test_few_buffers_are_alive(lanes: int, buffers: int) -> None:
    assert folding(Node(0, lanes))[1] == buffers


def test_partials_with_a_gap_are_refused() -> None:
    with pytest.raises(ValueError, match="do not add up to 4 lanes"):
        additions(4, [Node(2, 4)])
