"""A sum over lanes in tree order whose terms come in any order: what can be added is added at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from lockstep.lanes.tree import Node, children


class _Pair(NamedTuple):
    left: Node
    right: Node
    sum: Node


class TreeSum:
    """The sums of one step so far, each in a buffer of its own; buffers are kept for the next step."""

    def __init__(self, lanes: int) -> None:
        self._whole = Node(0, lanes)
        self._pairs: dict[Node, _Pair] = {}
        self._sums: dict[Node, Tensor] = {}
        self._spare: list[Tensor] = []
        self._note_pairs(self._whole)

    def add(self, values: Mapping[int, Tensor]) -> None:
        """Add some lanes' values, whose memory may be overwritten and is not used afterwards."""
        passing: dict[Node, Tensor] = {}
        for lane in sorted(values):
            self._put(Node(lane, lane + 1), values[lane], passing)
        for node, value in passing.items():
            room = self._spare.pop() if self._spare else torch.empty_like(value)
            self._sums[node] = room.copy_(value)

    def take(self) -> Tensor:
        """Return the sum over all lanes; `give_back` it when it is no longer needed."""
        return self._sums.pop(self._whole)

    def give_back(self, total: Tensor) -> None:
        """Keep a sum's memory for the next step."""
        self._spare.append(total)

    def _put(self, node: Node, value: Tensor, passing: dict[Node, Tensor]) -> None:
        """Add a value to its neighbour in the tree, if that is here, and so on; `passing` are those not kept yet."""
        own = False
        while node in self._pairs:
            pair = self._pairs[node]
            other = pair.left if node == pair.right else pair.right
            if other in self._sums:
                kept = self._sums.pop(other)
                if own:
                    self._spare.append(value)
                value, own = torch.add(kept, value, out=kept), True
            elif other in passing:
                term = passing.pop(other)
                value = torch.add(value, term, out=value)
            else:
                break
            node = pair.sum
        (self._sums if own else passing)[node] = value

    def _note_pairs(self, node: Node) -> None:
        if node.hi - node.lo > 1:
            left, right = children(node)
            self._pairs[left] = self._pairs[right] = _Pair(left, right, node)
            self._note_pairs(left)
            self._note_pairs(right)
