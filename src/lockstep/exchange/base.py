"""The exact reduction: sums over lanes in tree order, whoever holds which partial, over four transports.

    transport          partials                       weights               the sum of slice r is made by
    InProcess          tensors of threads             one flat tensor       thread r, between two barriers
    SharedArena        per-rank buffers in the arena  one flat tensor       rank r, between two barriers
    Collective         own tensors, all-to-all        own, all-gathered     rank r, after the exchange
    ArenaPerHost       as SharedArena, on each host   one per host          rank r, or one of each host: see hosts.py

[Note: in place]
The sum is made in place, in the first partial's memory: rank r is the only one that touches slice r between the two
meetings, so nothing is copied and nobody waits for a scratch buffer.

[Note: no negative zeros]
A gradient that is missing counts as zero, and where all others are negative zeros the sum's sign would depend on how it
is left out. So every sum has zero added to it at the end, which makes a zero positive and changes nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from lockstep.comm.combine import BLOCK_BYTES, in_blocks, kernels, quiet
from lockstep.comm.wire import AVERAGE
from lockstep.lanes.schedule import owned_lanes
from lockstep.lanes.tree import Add, Node, additions, cover


class Exchange(ABC):
    """What workers tell each other in a step. All workers make the same calls in the same order."""

    shares_memory = True
    """Whether the workers of a host see one copy of the weights."""
    name = "in process"
    """What reports call it."""

    def __init__(self, lanes: int, workers: int, rank: int, *, in_turn: bool = False) -> None:
        """`in_turn`: lanes are dealt out in turn, so each is a partial of its own."""
        self.lanes, self.workers, self.rank = lanes, workers, rank
        everyone = self.held(lanes, workers, in_turn=in_turn)
        self.nodes = everyone[rank]
        """This worker's partials."""
        self.most = max(len(nodes) for nodes in everyone)
        """The largest number of partials that any worker has."""
        self._covers = everyone
        self._counts = [len(nodes) for nodes in everyone]
        flat: list[Node] = [node for nodes in everyone for node in nodes]
        self._plan: list[Add] = additions(lanes, flat)

    @staticmethod
    def held(lanes: int, workers: int, *, in_turn: bool = False) -> list[list[Node]]:
        """Return the partials that each worker holds, by rank."""
        owned = [owned_lanes(lanes, workers, rank, in_turn=in_turn) for rank in range(workers)]
        if in_turn:
            return [[Node(lane, lane + 1) for lane in lanes_of_one] for lanes_of_one in owned]
        return [cover(lanes, lanes_of_one) for lanes_of_one in owned]

    @abstractmethod
    def weights(self, numel: int, dtype: torch.dtype, device: str) -> Tensor:
        """Return a flat buffer for weights, zeroed: one for all workers where memory is shared."""

    @abstractmethod
    def partials(self, numel: int, dtype: torch.dtype, device: str) -> list[Tensor]:
        """Return flat buffers for this worker's partials, in the order of `nodes`."""

    @abstractmethod
    def barrier(self) -> None:
        """Wait for all workers: what they wrote before is read after."""

    @abstractmethod
    def mean(self, partials: Sequence[Tensor], part: range, weight: float) -> Tensor:
        """Return the sum over all lanes of the elements `part`, divided by the weight; between two meetings."""

    @abstractmethod
    def sum_disjoint(self, numbers: Tensor) -> Tensor:
        """Return the sum of the workers' tables, of which at most one has a number that is not 0 in each place."""

    def broadcast_weights(self, flat: Tensor) -> None:
        """Make rank 0's weights everybody's; where memory is shared, wait until it has written them."""
        self.barrier()

    def gather_weights(self, flat: Tensor) -> None:  # noqa: B027 - where memory is shared, nothing is to be done
        """Give every worker the slices that the others updated; nothing to do where memory is shared."""

    @abstractmethod
    def whole_gradient(self, partials: Sequence[Tensor], reduced: Tensor) -> Tensor | None:
        """Return the whole reduced gradient to a worker that updates whole tensors; None: another one does."""

    def divided(self, sums: Sequence[Tensor], weight: float) -> Tensor:
        """Add up sums that make up that over all lanes, one after another, and divide by the weight; in the first."""
        return self._add_up(sums, [Add(0, other) for other in range(1, len(sums))], weight)

    def add_up_all(self, parts: Sequence[Tensor], weight: float) -> Tensor:
        """Add up the parts of a slice, as `Traffic.arrived` returns them, in place of the first, and divide."""
        return self._add_up(parts, self._plan, weight)

    def _add_up(self, parts: Sequence[Tensor], plan: Sequence[Add], weight: float | None = None) -> Tensor:
        """Add partials in tree order, in place; with a weight, all are added up to the first, and that is divided.

        Block by block: what is used again is still in the cache. See [Note: no negative zeros].
        """
        first = parts[0]
        block = BLOCK_BYTES // first.itemsize if first.is_cpu else max(first.numel(), 1)
        how = kernels(AVERAGE, first.dtype, first.device.type)
        assert how.mean is not None
        with quiet():
            for blocks in in_blocks([how.view(one) for one in parts], block):
                for left, right in plan:
                    how.combine(blocks[left], blocks[right], out=blocks[left])
                if weight is not None:
                    how.combine(blocks[0], 0.0, out=blocks[0])
                    how.mean(blocks[0], weight, out=blocks[0])
        return first
