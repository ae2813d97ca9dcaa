"""Buffers between hosts: what BatchNorm has counted, in one message from each host to each other one.

    first rank of host A                                  first rank of host B
    1  adds up its host's partials, as far as the tree allows
    2  sends what is left, whole  <---------------------> the same                    (rank 0 also its other buffers)
    3  adds up what came from all hosts, in tree order: both get the same bits, and nobody has to send them back

Buffers are small, so a message that is waited for costs more than what is in it: gradients are divided into slices,
which go there and back; buffers are not.
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


class HostBuffers:
    """Of a rank whose exchange is `ArenaPerHost`; only the first one of each host has something to do."""

    def __init__(self, exchange: ArenaPerHost, sections: Sequence[tuple[list[Tensor], Tensor]], others: int) -> None:
        """`sections`: of each the host's partials, and where the mean belongs; `others`: how many other numbers."""
        self._exchange, self._sections = exchange, sections
        self.others = exchange.weights(others, torch.float64, "cpu") if others else torch.zeros(0, dtype=torch.float64)
        """The buffers that are not floats, as rank 0 has them; there when `arrive` is done, and the host has met."""
        self._boxes = [Box(self._sections, count, 0 if first else others) for first, count in exchange.told_by]
        self._works: list[dist.Work] = []
        self._active = bool(sections or others) and exchange.rank in (first for first, _ in exchange.told_by)

    def begin(self) -> None:
        """Start a step: be ready for the other hosts."""
        if self._active:
            self._works = [self._exchange.receive(box.memory, rank, TAG) for rank, box in self._of_others()]

    def leave(self, others: Tensor) -> None:
        """Send what this host has; all its ranks are done with their lanes."""
        if not self._active:
            return
        exchange, box = self._exchange, self._own
        for (made, _), targets in zip(self._sections, box.sections, strict=True):
            exchange.add_up_host(made)
            for target, position in zip(targets, exchange.left_here, strict=True):
                target.copy_(made[position])
        if exchange.rank == 0:
            box.others.copy_(others)
        self._works += [exchange.send(box.memory, rank, TAG) for rank, _ in self._of_others()]

    def arrive(self, lanes: int) -> None:
        """Wait for the other hosts; the mean over so many lanes is then where it belongs."""
        if not self._active:
            return
        for work in self._works:
            work.wait()
        for number, (_, mean) in enumerate(self._sections):
            parts = [part for box in self._boxes for part in box.sections[number]]
            mean.copy_(self._exchange.add_up_all(parts, lanes))
        self.others.copy_(self._boxes[0].others)  # rank 0 is on the first host

    @property
    def _own(self) -> Box:
        return next(box for rank, box in self._of_hosts() if rank == self._exchange.rank)

    def _of_others(self) -> list[tuple[int, Box]]:
        return [(rank, box) for rank, box in self._of_hosts() if rank != self._exchange.rank]

    def _of_hosts(self) -> list[tuple[int, Box]]:
        return [(first, box) for (first, _), box in zip(self._exchange.told_by, self._boxes, strict=True)]


class Box:
    """The memory of one host's message, and what lies where in it."""

    def __init__(self, sections: Sequence[tuple[list[Tensor], Tensor]], count: int, others: int) -> None:
        """`count`: the partials of each section that are in it."""
        sizes = [8 * others, *(mean.nbytes for _, mean in sections for _ in range(count))]
        self.memory = torch.zeros(sum(sizes), dtype=torch.uint8)
        first, *parts = torch.split(self.memory, sizes)
        self.others = first.view(torch.float64)
        own = iter(parts)
        self.sections = [[next(own).view(mean.dtype) for _ in range(count)] for _, mean in sections]
