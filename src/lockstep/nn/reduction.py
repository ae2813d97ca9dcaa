"""The mean of a bucket over the ranks, begun during backward and finished after it: two ways.

    AllReduce    the backend's own; on shm and NCCL it divides too, elsewhere the gradients are scaled beforehand
    Exact        1 all-to-all: rank r gets slice r of every rank       begun as soon as the bucket is complete
                 2 rank r adds up its slice in tree order, divides
                 3 all-gather of the slices                            after backward

No arithmetic is left to the collective in the second, so its bits do not depend on the backend, nor on which tensors
share a bucket. shm's own all_reduce adds in the same tree, so there the first way is exact already.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep.comm.broadcast import all_gather_single
from lockstep.comm.combine import Combiner
from lockstep.comm.wire import AVERAGE
from lockstep.nn.buckets import ALIGN

AVERAGING = ("nccl", "shm")
"""Backends that take the mean themselves."""
EXACT = ("shm",)
"""Backends whose all_reduce has the one order of addition."""


class Reduction(ABC):
    """Takes the mean over the ranks of one flat tensor after another; all bring the same ones in the same order."""

    scale = 1.0
    """What gradients must be multiplied by before they are brought."""
    multiple = 1
    """What the length of a flat tensor must be a multiple of."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self.size = group, group.size()
        self._works: list[Any] = []

    @abstractmethod
    def begin(self, flat: Tensor) -> None:
        """Begin with a tensor; it must not be touched until `finish`."""

    @abstractmethod
    def finish(self) -> None:
        """Wait until all tensors hold the mean; raise what went wrong."""

    def forget(self) -> None:
        """Drop what a backward that failed half-way left behind."""
        self._works.clear()


class AllReduce(Reduction):
    """The backend's all_reduce."""

    def __init__(self, group: dist.ProcessGroup, *, averages: bool) -> None:
        super().__init__(group)
        self.scale = 1.0 if averages else 1.0 / self.size
        self._op = dist.ReduceOp.AVG if averages else dist.ReduceOp.SUM

    def begin(self, flat: Tensor) -> None:
        """Start it in the background."""
        self._works.append(dist.all_reduce(flat, op=self._op, group=self.group, async_op=True))

    def finish(self) -> None:
        """Wait for each, in order."""
        works, self._works = self._works, []
        for work in works:
            work.wait()


class Exact(Reduction):
    """All-to-all, local tree, all-gather; the numbers are those of the drawing."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__(group)
        self.multiple = self.size * ALIGN
        self._inboxes: dict[int, Tensor] = {}
        self._combiner = Combiner(self.size)

    def begin(self, flat: Tensor) -> None:
        """Send the slices to those who add them up."""
        inbox = self._inboxes.get(flat.data_ptr())
        if inbox is None:
            inbox = self._inboxes[flat.data_ptr()] = torch.empty_like(flat)
        # as bytes: backends differ in the dtypes that they take
        work = dist.all_to_all_single(_bytes(inbox), _bytes(flat), group=self.group, async_op=True)  # 1
        self._works.append((work, flat, inbox))

    def finish(self) -> None:
        """Add up and gather, bucket after bucket; one is gathered while the next is added up."""
        works, self._works = self._works, []
        gathers = []
        for work, flat, inbox in works:
            work.wait()
            parts = list(inbox.view(self.size, -1))
            self._combiner.into(parts[0], parts, AVERAGE)  # 2
            gather = all_gather_single(_bytes(flat), _bytes(parts[0]), group=self.group, async_op=True)  # 3
            gathers.append(gather)
        for gather in gathers:
            gather.wait()


def _bytes(flat: Tensor) -> Tensor:
    return flat.view(torch.uint8)


def choose(group: dist.ProcessGroup, device: torch.device, *, exact: bool) -> Reduction:
    """Return the way for tensors of a device."""
    name = backend_of(group, device)
    if exact and name not in EXACT:
        return Exact(group)
    return AllReduce(group, averages=name in AVERAGING)


def backend_of(group: dist.ProcessGroup, device: torch.device) -> str:
    """Return the name of the backend that serves a device; a group may have one for each."""
    pairs = (part.rpartition(":") for part in dist.get_backend_config(group).split(","))
    names = {kind: name for kind, _, name in pairs}
    return names.get(device.type) or names.get("") or dist.get_backend(group)
