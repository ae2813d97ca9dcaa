"""The exact reduction: sums over lanes in tree order, whoever holds which partial, over four transports.

    transport          partials                       weights               the sum of slice r is made by
    InProcess          tensors of threads             one flat tensor       thread r, between two barriers
    SharedArena        per-rank buffers in the arena  one flat tensor       rank r, between two barriers
    Collective         own tensors, all-to-all        own, all-gathered     rank r, after the exchange
    ArenaPerHost       as SharedArena, on each host   one per host          rank r, see comm/hosts.py

[Note: in place]
The sum is made in place, in the first partial's memory: rank r is the only one that touches slice r between the two
meetings, so nothing is copied and nobody waits for a scratch buffer.

[Note: no negative zeros]
A gradient that is missing counts as zero, and where all others are negative zeros the sum's sign would depend on how it
is left out. So every sum has zero added to it at the end, which makes a zero positive and changes nothing else.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep.comm.arena import Arena
from lockstep.comm.combine import BLOCK_BYTES, arithmetic, in_blocks, quiet
from lockstep.comm.wire import AVERAGE
from lockstep.lanes.schedule import owned_lanes
from lockstep.lanes.tree import Add, Node, additions, cover


class Exchange(ABC):
    """What workers tell each other in a step. All workers make the same calls in the same order."""

    shares_memory = True
    """Whether the workers of a host see one copy of the weights."""
    name = "in process"
    """What reports call it."""

    def __init__(self, lanes: int, workers: int, rank: int) -> None:
        self.lanes, self.workers, self.rank = lanes, workers, rank
        self.owned = owned_lanes(lanes, workers, rank)
        everyone = self.held(lanes, workers)
        self.nodes = everyone[rank]
        """This worker's partials."""
        self.most = max(len(nodes) for nodes in everyone)
        """The largest number of partials that any worker has."""
        self._covers = everyone
        self._counts = [len(nodes) for nodes in everyone]
        flat: list[Node] = [node for nodes in everyone for node in nodes]
        self._plan: list[Add] = additions(lanes, flat)

    @staticmethod
    def held(lanes: int, workers: int) -> list[list[Node]]:
        """Return the partials that each worker holds, by rank."""
        return [cover(lanes, owned_lanes(lanes, workers, rank)) for rank in range(workers)]

    @abstractmethod
    def weights(self, numel: int, dtype: torch.dtype, device: str) -> Tensor:
        """Return a flat buffer for weights, zeroed: one for all workers where memory is shared."""

    @abstractmethod
    def partials(self, numel: int, dtype: torch.dtype, device: str) -> list[Tensor]:
        """Return flat buffers for this worker's partials, in the order of `nodes`."""

    @abstractmethod
    def meet(self) -> None:
        """Wait for all workers: what they wrote before is read after."""

    @abstractmethod
    def mean(self, partials: Sequence[Tensor], part: range, weight: float) -> Tensor:
        """Return the sum over all lanes of the elements `part`, divided by the weight; between two meetings."""

    @abstractmethod
    def everyone(self, numbers: Tensor) -> Tensor:
        """Return the workers' tables of numbers, added up where at most one worker has a number that is not 0."""

    def start_weights(self, flat: Tensor) -> None:
        """Make rank 0's weights everybody's; where memory is shared, wait until it has written them."""
        self.meet()

    def share_weights(self, flat: Tensor) -> None:  # noqa: B027 - where memory is shared, nothing is to be done
        """Give every worker the slices that the others updated; nothing to do where memory is shared."""

    @abstractmethod
    def whole(self, partials: Sequence[Tensor], reduced: Tensor) -> Tensor | None:
        """Return the whole reduced gradient to a worker that updates whole tensors; None: another one does."""

    def _add_up(self, parts: Sequence[Tensor], plan: Sequence[Add], weight: float | None = None) -> Tensor:
        """Add partials in tree order, in place; with a weight, all are added up to the first, and that is divided.

        Block by block: what is used again is still in the cache. See [Note: no negative zeros].
        """
        first = parts[0]
        block = BLOCK_BYTES // first.itemsize if first.is_cpu else max(first.numel(), 1)
        how = arithmetic(AVERAGE, first.dtype, first.device.type)
        assert how.mean is not None
        with quiet():
            for blocks in in_blocks([how.view(one) for one in parts], block):
                for left, right in plan:
                    how.combine(blocks[left], blocks[right], out=blocks[left])
                if weight is not None:
                    how.combine(blocks[0], 0.0, out=blocks[0])
                    how.mean(blocks[0], weight, out=blocks[0])
        return first


class InProcess(Exchange):
    """Workers that are threads of one process; also a single worker."""

    class Common:
        """What the threads share."""

        def __init__(self, workers: int) -> None:
            self.barrier = threading.Barrier(workers)
            self.weights: list[Tensor] = []
            self.partials: dict[tuple[int, int], list[Tensor]] = {}
            self.numbers: list[Tensor] = [torch.empty(0)] * workers

    def __init__(self, lanes: int, workers: int = 1, rank: int = 0, common: Common | None = None) -> None:
        super().__init__(lanes, workers, rank)
        self._common = common or InProcess.Common(workers)
        self._made = 0
        self._weights = 0
        self._ids: dict[int, int] = {}

    def weights(self, numel: int, dtype: torch.dtype, device: str) -> Tensor:
        """Return the same tensor to every thread; rank 0 makes it."""
        if self.rank == 0:
            self._common.weights.append(torch.zeros(numel, dtype=dtype, device=device))
        self.meet()
        self._weights += 1
        return self._common.weights[self._weights - 1]

    def partials(self, numel: int, dtype: torch.dtype, device: str) -> list[Tensor]:
        """Return own tensors, and let the others find them."""
        made = [torch.zeros(numel, dtype=dtype, device=device) for _ in self.nodes]
        self._common.partials[self._made, self.rank] = made
        self._ids[id(made[0])] = self._made
        self._made += 1
        return made

    def meet(self) -> None:
        """Wait for all threads."""
        if self.workers > 1:
            self._common.barrier.wait()

    def mean(self, partials: Sequence[Tensor], part: range, weight: float) -> Tensor:
        """Add up in place, see [Note: in place]."""
        made = self._ids[id(partials[0])]
        every = [one for rank in range(self.workers) for one in self._common.partials[made, rank]]
        return self._add_up([one[part.start : part.stop] for one in every], self._plan, weight)

    def whole(self, partials: Sequence[Tensor], reduced: Tensor) -> Tensor | None:
        """Let rank 0 update: the slices were added up in its first partial."""
        self.meet()
        return partials[0] if self.rank == 0 else None

    def everyone(self, numbers: Tensor) -> Tensor:
        """Add up the threads' tables."""
        if self.workers == 1:
            return numbers
        self._common.numbers[self.rank] = numbers
        self.meet()
        total = torch.stack(self._common.numbers).sum(0)
        self.meet()
        return total


class SharedArena(Exchange):
    """Workers that are processes of one host: one copy of the weights, nothing copied in or out."""

    name = "arena"

    def __init__(self, arena: Arena, lanes: int) -> None:
        super().__init__(lanes, arena.size, arena.rank)
        self._arena = arena
        self._made: dict[int, list[Tensor]] = {}

    def weights(self, numel: int, dtype: torch.dtype, device: str) -> Tensor:
        """Return the host's one buffer."""
        return self._arena.shared(numel, dtype)

    def partials(self, numel: int, dtype: torch.dtype, device: str) -> list[Tensor]:
        """Return own buffers in the arena."""
        every = [[self._arena.shared(numel, dtype) for _ in range(count)] for count in self._counts]
        mine = every[self.rank]
        self._made[id(mine[0])] = [one for row in every for one in row]
        return mine

    def meet(self) -> None:
        """Wait for all ranks of the host."""
        self._arena.barrier()

    def mean(self, partials: Sequence[Tensor], part: range, weight: float) -> Tensor:
        """Add up in place, see [Note: in place]."""
        every = self._made[id(partials[0])]
        return self._add_up([one[part.start : part.stop] for one in every], self._plan, weight)

    def whole(self, partials: Sequence[Tensor], reduced: Tensor) -> Tensor | None:
        """Let rank 0 update: the slices were added up in its first partial."""
        self.meet()
        return partials[0] if self.rank == 0 else None

    def everyone(self, numbers: Tensor) -> Tensor:
        """Add up through the backend: small messages take microseconds there."""
        dist.all_reduce(numbers, group=self._arena.group)
        return numbers


class Collective(Exchange):
    """Workers anywhere, on any torch.distributed backend: the bandwidth of an all-reduce, no sum in the collective."""

    shares_memory = False

    def __init__(self, lanes: int, why: str = "") -> None:
        super().__init__(lanes, dist.get_world_size(), dist.get_rank())
        self.name = f"collectives over {dist.get_backend()}" + (f" ({why})" if why else "")

    def weights(self, numel: int, dtype: torch.dtype, device: str) -> Tensor:
        """Return this worker's own buffer."""
        return torch.zeros(numel, dtype=dtype, device=device)

    def partials(self, numel: int, dtype: torch.dtype, device: str) -> list[Tensor]:
        """Return own buffers."""
        return [torch.zeros(numel, dtype=dtype, device=device) for _ in self.nodes]

    def meet(self) -> None:
        """Nothing: the collectives themselves wait."""

    def mean(self, partials: Sequence[Tensor], part: range, weight: float) -> Tensor:
        """Exchange slices, then add up what came.

        Only slices of equal length can be asked for: every worker asks for its own at the same time.
        """
        length, found = len(part), []
        for turn in range(self.most):
            senders = [rank for rank, count in enumerate(self._counts) if turn < count]
            sends = length if turn < len(partials) else 0
            inbox = partials[0].new_empty(length * len(senders))
            outbox = partials[turn][: length * self.workers] if sends else partials[0][:0]
            dist.all_to_all_single(
                inbox,
                outbox,
                [length if rank in senders else 0 for rank in range(self.workers)],
                [sends] * self.workers,
            )
            found.append(dict(zip(senders, inbox.view(len(senders), length), strict=True)))
        parts = [found[turn][rank] for rank, count in enumerate(self._counts) for turn in range(count)]
        return self._add_up(parts, self._plan, weight)

    def start_weights(self, flat: Tensor) -> None:
        """Rank 0 wins."""
        dist.broadcast(flat, src=0)

    def whole(self, partials: Sequence[Tensor], reduced: Tensor) -> Tensor | None:
        """Gather the slices: every worker has weights of its own to update."""
        flat = torch.empty_like(partials[0])
        dist.all_gather(list(torch.split(flat, reduced.numel())), reduced)
        return flat

    def everyone(self, numbers: Tensor) -> Tensor:
        """Add up: a number and zeros are exact in any order."""
        dist.all_reduce(numbers)
        return numbers

    def share_weights(self, flat: Tensor) -> None:
        """Gather the slices that each worker updated."""
        length = flat.numel() // self.workers
        mine = flat[self.rank * length : (self.rank + 1) * length].clone()
        dist.all_gather(list(torch.split(flat, length)), mine)
