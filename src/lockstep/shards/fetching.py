"""Fetching: blocks come from their owners in a fixed order, the next one while the present one is used.

[Note: one order]
Workers compute different lanes, but must send and receive the same blocks in the same order. So the order of a pass is
that of one lane, on which it was noted. A worker whose lane skips a block fetches it all the same and drops it; one
that has no lane goes through the whole order. A lane that needs the blocks in another order is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
import torch.distributed as dist

from lockstep.comm.group import Group
from lockstep.errors import BadInput
from lockstep.shards.block_weights import BlockWeights
from lockstep.shards.messages import begin, both_ways


class Fetcher:
    """Which blocks are here, which are on their way, and what comes next."""

    def __init__(self, blocks: Sequence[BlockWeights], group: Group) -> None:
        self._blocks, self._group = blocks, group
        self.lap: Callable[[str], None] = lambda part: None
        """Books the time since it was last called on a part of the step."""
        self._part = "forward"
        self._here: set[int] = set()
        self._coming: dict[int, list[dist.Work]] = {}
        self._order: Sequence[int] | None = None
        self._next = 0
        self.noted: list[int] = []
        """The order in which blocks were needed, where none was given."""

    def start(self, order: Sequence[int] | None, part: str) -> None:
        """Begin a pass over blocks in this order; without one, blocks are fetched as they are needed, and noted."""
        self._order, self._next, self.noted, self._part = order, 0, [], part
        self._fetch_ahead()

    def need(self, block: int) -> None:
        """Return when a block is here."""
        if block in self._here:
            return
        if self._order is None:
            self.noted.append(block)
            self._begin(block, in_use=False)
        while block not in self._coming:
            assert self._order is not None
            if not self._coming and self._next == len(self._order):
                raise BadInput(
                    "this lane uses the model's parts in another order than the one that the model was looked at with: "
                    "strategy sharded needs one order for all lanes; use strategy ddp"
                )
            self._pass_by()
            self._fetch_ahead()
        self._arrive(block)
        self._fetch_ahead()

    def release(self, block: int) -> None:
        """Drop a block; it is kept where it is on its way once more."""
        if block in self._here:
            self._here.remove(block)
            if block not in self._coming:
                self._blocks[block].drop()

    def finish(self) -> None:
        """Go through the rest of the order, so that the others get their blocks."""
        while self._coming:
            self._pass_by()
            self._fetch_ahead()

    def fetch(self, block: int) -> None:
        """Get a block's present weights, outside of any pass; all workers call this together."""
        self._begin(block, in_use=False)
        self._arrive(block)

    def release_all(self, but: Collection[int] = ()) -> None:
        """Drop all that is here, but for some."""
        for block in self._here - set(but):
            self.release(block)

    def _pass_by(self) -> None:
        """Let the block that is on its way come, and drop it."""
        for block in list(self._coming):
            kept = block in self._here
            self._arrive(block)
            if not kept:
                self.release(block)

    def _fetch_ahead(self) -> None:
        if not self._coming and self._order is not None and self._next < len(self._order):
            block = self._order[self._next]
            self._next += 1
            self._begin(block, in_use=block in self._here)

    def _begin(self, block: int, *, in_use: bool) -> None:
        """Begin to fetch a block; of one that is in use, what comes once more is the same, and goes elsewhere."""
        weights = self._blocks[block]
        weights.make_room()
        operations = []
        for peer in range(self._group.size):
            if peer != self._group.rank:
                for number, flat in weights.flats.items():
                    part = weights.parts[number][peer]
                    place = flat[part.start : part.stop]
                    into = torch.empty_like(place) if in_use else place
                    operations += both_ways(self._group, peer, weights.slices[number], into)
        self._coming[block] = begin(operations)

    def _arrive(self, block: int) -> None:
        self.lap(self._part)
        for work in self._coming.pop(block):
            work.wait()
        self.lap("wait")
        self._here.add(block)
        self._blocks[block].show()
