"""The reduction tree: sums over lanes are always added in this order, whoever computes which lane.

    sum(lo, hi) = the lane itself                 if hi - lo == 1
                = sum(lo, mid) + sum(mid, hi)     else, with mid = lo + the largest power of two below hi - lo

                    (0,8)
               (0,4)     +     (4,8)
          (0,2) + (2,4)   (4,6) + (6,8)
          0 + 1   2 + 3   4 + 5   6 + 7

Floating-point addition is commutative but not associative, so this tree is the definition of a sum over lanes. A worker
adds up the nodes that lie completely inside its own lanes; the nodes above are added across workers in the same tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple


class Node(NamedTuple):
    """The sum over lanes lo..hi."""

    lo: int
    hi: int


def middle(node: Node) -> int:
    """Return where a node splits."""
    span = node.hi - node.lo
    return node.lo + (1 << ((span - 1).bit_length() - 1))


def children(node: Node) -> tuple[Node, Node]:
    """Return the two nodes whose sum a node is."""
    mid = middle(node)
    return Node(node.lo, mid), Node(mid, node.hi)


def cover(lanes: int, owned: range) -> list[Node]:
    """Return the largest nodes of the tree over all lanes that lie completely inside the owned lanes, in order."""

    def below(node: Node) -> Iterator[Node]:
        if node.hi <= owned.start or owned.stop <= node.lo:
            return
        if owned.start <= node.lo and node.hi <= owned.stop:
            yield node
            return
        for child in children(node):
            yield from below(child)

    return list(below(Node(0, lanes))) if len(owned) else []


class Add(NamedTuple):
    """Add partial sum `right` to partial sum `left`, which then holds both."""

    left: int
    right: int


class MergePlan(NamedTuple):
    """The additions that some of the partial sums allow without the others."""

    steps: list[Add]
    """The additions, in order."""
    left: list[tuple[Node, int]]
    """The partial sums that remain, in lane order: each node, and the position of the partial that then holds it."""


def merge_plan(lanes: int, partials: Sequence[Node]) -> MergePlan:
    """Return the additions that these partial sums allow among themselves, by their positions."""
    position = {node: index for index, node in enumerate(partials)}
    steps: list[Add] = []
    left: list[tuple[Node, int]] = []

    def total(node: Node) -> int | None:
        if node in position:
            return position[node]
        if node.hi - node.lo == 1:
            return None
        (one, first), (two, second) = ((child, total(child)) for child in children(node))
        if first is not None and second is not None:
            steps.append(Add(first, second))
            return first
        left.extend((child, at) for child, at in ((one, first), (two, second)) if at is not None)
        return None

    whole = total(Node(0, lanes))
    return MergePlan(steps, sorted(left) if whole is None else [(Node(0, lanes), whole)])


def additions(lanes: int, partials: Sequence[Node]) -> list[Add]:
    """Return the additions that turn partial sums (in order, covering all lanes) into the total, by their positions.

    The result is in position 0.
    """
    steps, left = merge_plan(lanes, partials)
    if left != [(Node(0, lanes), 0)]:
        raise ValueError(f"partial sums {list(partials)} do not add up to {lanes} lanes: {left} remain")
    return steps


class Fold(NamedTuple):
    """What to do with one lane's value: copy it to a buffer or add it there, then merge buffers."""

    buffer: int
    """The buffer."""
    fresh: bool
    """Whether the value is copied (the buffer is free) or added."""
    merges: tuple[Add, ...]
    """Additions between buffers afterwards; the right buffer of each is then free."""
    waits: bool = False
    """Whether the next lane is added to this one: both can be added in one pass, and this one need not be copied."""


def running_sum(lanes: int) -> tuple[list[Fold], int]:
    """Return how to add up lanes one after another in one buffer: not a tree, so the sum depends on the workers."""
    return _pairs([Fold(0, lane == 0, ()) for lane in range(lanes)]), 1


def folding(node: Node) -> tuple[list[Fold], int]:
    """Return how to add up the lanes of a node in order with few buffers, and the number of buffers.

    The result is in buffer 0. This is a binary counter: two neighbours share a buffer, and a finished pair is merged as
    soon as the next pair is finished, so that about log2(lanes) buffers are in use at once.
    """
    folds: list[Fold] = []
    most = 0

    def visit(part: Node, buffer: int) -> None:
        nonlocal most
        most = max(most, buffer + 1)
        if part.hi - part.lo == 1:
            folds.append(Fold(buffer, True, ()))
            return
        left, right = children(part)
        visit(left, buffer)
        if right.hi - right.lo == 1:
            folds.append(Fold(buffer, False, ()))
            return
        visit(right, buffer + 1)
        last = folds[-1]
        folds[-1] = last._replace(merges=(*last.merges, Add(buffer, buffer + 1)))

    visit(node, 0)
    return _pairs(folds), most


def _pairs(folds: list[Fold]) -> list[Fold]:
    for position, (fold, follower) in enumerate(pairwise(folds)):
        folds[position] = fold._replace(waits=fold.fresh and not follower.fresh)
    return folds
