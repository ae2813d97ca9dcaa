"""The one order of addition: a tree over lanes, whoever computes them.

sum(lo, hi) = the lane itself                 if hi - lo == 1
            = sum(lo, mid) + sum(mid, hi)     else, mid = lo + the largest power of two below hi - lo

                (0,8)                     Floating-point addition commutes but does not associate, so this
           (0,4)     +     (4,8)          tree is the definition of a sum over lanes. A worker adds up the
      (0,2) + (2,4)   (4,6) + (6,8)       nodes that lie whole inside its own lanes; the nodes above are
      0 + 1   2 + 3   4 + 5   6 + 7       added across workers, in the same order.
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
    """Return the two nodes that a node is the sum of."""
    mid = middle(node)
    return Node(node.lo, mid), Node(mid, node.hi)


def cover(lanes: int, owned: range) -> list[Node]:
    """Return the largest nodes of the tree over all lanes that lie whole inside the owned ones, in order."""

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
    """Add partial `right` to partial `left`; `left` then holds the sum of both."""

    left: int
    right: int


class Merged(NamedTuple):
    """What some of the partials of a sum can be added up to, without the others."""

    steps: list[Add]
    """The additions, in order."""
    left: list[tuple[Node, int]]
    """What they leave, by lane: each node, and the position of the partial that then holds it."""


def merged(lanes: int, partials: Sequence[Node]) -> Merged:
    """Return the additions that these partials allow among themselves, by their positions."""
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
        left.extend((child, found) for child, found in ((one, first), (two, second)) if found is not None)
        return None

    whole = total(Node(0, lanes))
    return Merged(steps, sorted(left) if whole is None else [(Node(0, lanes), whole)])


def additions(lanes: int, partials: Sequence[Node]) -> list[Add]:
    """Return the additions that turn partials (in order, covering all lanes) into the whole, by their positions.

    The result ends in position 0.
    """
    steps, left = merged(lanes, partials)
    if left != [(Node(0, lanes), 0)]:
        raise ValueError(f"partials {list(partials)} do not add up to {lanes} lanes: they leave {left}")
    return steps


class Fold(NamedTuple):
    """What to do with one lane's value: put or add it into a buffer, then merge buffers."""

    buffer: int
    """Which buffer it goes into."""
    fresh: bool
    """Whether it is put there (the buffer is free) or added to what is there."""
    merges: tuple[Add, ...]
    """Additions between buffers after it; the right one of each is free again."""
    waits: bool = False
    """Whether the next lane is added to it: the two can be added in one go, and this one need not be put down."""


def running(lanes: int) -> tuple[list[Fold], int]:
    """Return how to add up lanes one after another in one buffer: no tree, so the sum depends on who has which."""
    return _pairs([Fold(0, lane == 0, ()) for lane in range(lanes)]), 1


def folding(node: Node) -> tuple[list[Fold], int]:
    """Return how to add up the lanes of a node in order with few buffers, and how many that takes.

    The result ends in buffer 0. A binary counter: two neighbours share a buffer, and a finished pair is
    merged as soon as its twin is finished, so that about log2 of the lanes are alive at once.
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
