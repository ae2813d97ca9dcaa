"""Small sums between hosts: all of a host's in one message to each other host, and nothing comes back.

    first rank of host A                                  first rank of host B
    1  adds up its host's partials, as far as the tree allows
    2  sends what is left, whole  <---------------------> the same                        (with numbers of its own)
    3  adds up what came from all hosts, in tree order: both get the same bits, and nobody has to send them back

Where little is to be sent, a message that is waited for costs more than what is in it. Large sums are divided into
slices instead, which go there and back: see host_traffic.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from lockstep.exchange.hosts import ArenaPerHost

TAG = 1
"""Of these messages: they are begun before others that leave first."""


class WholeSums:
    """Of a rank whose exchange is `ArenaPerHost`; only the first one of each host has something to do."""

    def __init__(self, exchange: ArenaPerHost, partials: Sequence[Sequence[Tensor]], numbers: int) -> None:
        """Lay out the messages: `partials` are the host's, sum by sum; a host adds so many `numbers` to them."""
        self._exchange, self._partials = exchange, partials
        self.numbers = (
            exchange.weights(numbers, torch.float64, "cpu") if numbers else torch.zeros(0, dtype=torch.float64)
        )
        """The sum of all hosts' numbers; there when `arrive` is done, and the host has met."""
        self.active = bool(partials or numbers) and exchange.rank == exchange.first_here
        """Whether this rank sends and receives."""
        kinds, hosts = [made[0] for made in partials], exchange.told_by if self.active else []
        self._boxes = [Box(kinds, count, numbers) for _, count in hosts]
        self._works: list[dist.Work] = []

    def begin(self) -> None:
        """Start a step: be ready for the other hosts, unless a step that failed has left this so."""
        if self.active and not self._works:
            self._works = [self._exchange.receive(box.memory, rank, TAG) for rank, box in self._of_others()]

    def leave(self, numbers: Tensor) -> None:
        """Send what this host has; all its ranks are done with their lanes."""
        if not self.active:
            return
        exchange, box = self._exchange, self._own
        for made, targets in zip(self._partials, box.sums, strict=True):
            exchange.add_up_host(made)
            for target, position in zip(targets, exchange.left_here, strict=True):
                target.copy_(made[position])
        box.numbers.copy_(numbers)
        self._works += [exchange.send(box.memory, rank, TAG) for rank, _ in self._of_others()]

    def arrive(self) -> None:
        """Wait for the other hosts."""
        if not self.active:
            return
        for work in self._works:
            work.wait()
        self._works = []
        torch.sum(torch.stack([box.numbers for box in self._boxes]), 0, out=self.numbers)

    def mean(self, number: int, weight: float) -> Tensor:
        """Return one of the sums over all lanes, divided; only where this is active, and once a step."""
        return self._exchange.add_up_all([part for box in self._boxes for part in box.sums[number]], weight)

    def put_means(self, first: int, targets: Sequence[Tensor], weight: float) -> None:
        """Put the sums from number `first` on, divided, where they belong."""
        if self.active:
            for number, target in enumerate(targets, first):
                mean = self.mean(number, weight)
                target[: mean.numel()] = mean

    @property
    def _own(self) -> Box:
        return next(box for rank, box in self._of_hosts() if rank == self._exchange.rank)

    def _of_others(self) -> list[tuple[int, Box]]:
        return [(rank, box) for rank, box in self._of_hosts() if rank != self._exchange.rank]

    def _of_hosts(self) -> list[tuple[int, Box]]:
        return [(first, box) for (first, _), box in zip(self._exchange.told_by, self._boxes, strict=True)]


class Box:
    """The memory of one host's message, and what lies where in it."""

    def __init__(self, kinds: Sequence[Tensor], count: int, numbers: int) -> None:
        """`kinds`: a tensor of the size and type of each sum; `count`: the partials of each that are in it."""
        sizes = [8 * numbers, *(one.nbytes for one in kinds for _ in range(count))]
        self.memory = torch.zeros(sum(sizes), dtype=torch.uint8)
        first, *parts = torch.split(self.memory, sizes)
        self.numbers = first.view(torch.float64)
        own = iter(parts)
        self.sums = [[next(own).view(one.dtype) for _ in range(count)] for one in kinds]
