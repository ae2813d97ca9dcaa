"""The mean of a bucket over the ranks, begun during backward and finished after it, in two implementations.

    AllReduce         the backend's; shm and NCCL also divide, for other backends gradients are scaled beforehand
    ExactReduction    1 all-to-all: rank r gets slice r of every rank    begun as soon as the bucket is complete
                      2 rank r adds up its slice in tree order, divides
                      3 all-gather of the slices                         after backward

The second leaves no arithmetic to the collective, so its bits depend neither on the backend nor on which tensors share
a bucket. The all_reduce of shm adds along the same tree, so on shm the first one is exact already.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep.comm.combine import Combiner
from lockstep.comm.wire import AVERAGE
from lockstep.nn.buckets import ALIGN
from lockstep.torch_compat.distributed import all_gather_single

AVERAGING = ("nccl", "shm")
"""Backends that compute the mean themselves."""
EXACT = ("shm",)
"""Backends whose all_reduce adds along the fixed tree."""


class Reduction(ABC):
    """Computes the mean over the ranks of flat tensors; all ranks pass the same tensors in the same order."""

    scale = 1.0
    """The factor by which gradients must be scaled beforehand."""
    multiple = 1
    """The length of a flat tensor must be a multiple of this."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self.size = group, group.size()
        self._works: list[tuple[Any, ...]] = []
        """What has begun, each with its tensor and what else `finish` needs."""

    @abstractmethod
    def begin(self, flat: Tensor) -> None:
        """Begin to reduce a tensor; it must not be used until `finish`."""

    @abstractmethod
    def finish(self) -> None:
        """Wait until all tensors hold the mean; raise the error of one that failed."""

    def forget(self) -> None:
        """Wait for what a backward began that failed half-way, and set it to zero.

        Gradients are views of these tensors. Somebody may have set them to zero already, while sums were still to come.
        """
        works, self._works = self._works, []
        for work, flat, *_ in works:
            work.wait()
            flat.zero_()


class AllReduce(Reduction):
    """The backend's all_reduce."""

    def __init__(self, group: dist.ProcessGroup, *, averages: bool) -> None:
        super().__init__(group)
        self.scale = 1.0 if averages else 1.0 / self.size
        self._op = dist.ReduceOp.AVG if averages else dist.ReduceOp.SUM

    def begin(self, flat: Tensor) -> None:
        """Start the all_reduce in the background."""
        self._works.append((dist.all_reduce(flat, op=self._op, group=self.group, async_op=True), flat))

    def finish(self) -> None:
        """Wait for each all_reduce, in order."""
        works, self._works = self._works, []
        for work, _ in works:
            work.wait()


class ExactReduction(Reduction):
    """All-to-all, local tree, all-gather; numbers as in the diagram."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__(group)
        self.multiple = self.size * ALIGN
        self._inboxes: dict[int, Tensor] = {}
        self._combiner = Combiner(self.size)

    def begin(self, flat: Tensor) -> None:
        """Send each slice to the rank that adds it up."""
        inbox = self._inboxes.get(flat.data_ptr())
        if inbox is None:
            inbox = self._inboxes[flat.data_ptr()] = torch.empty_like(flat)
        # Sent as bytes: backends differ in the dtypes that they support.
        work = dist.all_to_all_single(_bytes(inbox), _bytes(flat), group=self.group, async_op=True)  # 1
        self._works.append((work, flat, inbox))

    def finish(self) -> None:
        """Add up and gather, bucket by bucket; one is gathered while the next is added up."""
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
    """Return the reduction for tensors of a device."""
    name = backend_of(group, device)
    if exact and name not in EXACT:
        return ExactReduction(group)
    return AllReduce(group, averages=name in AVERAGING)


def backend_of(group: dist.ProcessGroup, device: torch.device) -> str:
    """Return the name of the backend for a device; a group may have one for each kind."""
    pairs = (part.rpartition(":") for part in dist.get_backend_config(group).split(","))
    names = {kind: name for kind, _, name in pairs}
    return names.get(device.type) or names.get("") or dist.get_backend(group)
