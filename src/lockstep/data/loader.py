"""Batches by lane: each worker reads the samples of its own lanes and no others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils.data import TensorDataset, default_collate

from lockstep.data.sampler import permutation
from lockstep.lanes.schedule import lane_samples, owned_lanes, steps_per_epoch

Collate = Callable[[list[Any]], Any]


@runtime_checkable
class Gathers(Protocol):
    """A dataset that makes a whole batch in one go."""

    def gather(self, indices: Tensor) -> Any:
        """Return the batch of these samples."""
        ...


@dataclass(frozen=True)
class LaneBatch:
    """The samples of one lane in one step."""

    lane: int
    """Which lane of the global batch."""
    samples: int
    """How many samples it has; 0 for the filler of a worker that ran dry."""
    data: Any
    """What the loss gets."""


@dataclass(frozen=True)
class Batch:
    """This worker's part of one global batch."""

    step: int
    """Counted over the whole run."""
    epoch: int
    """Which pass over the data."""
    samples: int
    """Of the global batch, over all workers."""
    lanes: tuple[LaneBatch, ...]
    """This worker's lanes that have samples; if none has, one filler of weight 0."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """Whose samples are read: one worker of a world, and how the batch is cut."""

    global_batch: int
    """Samples per step over all workers."""
    lanes: int
    """Slices per step over all workers."""
    workers: int = 1
    """How many workers share a step."""
    rank: int = 0
    """Which of them this is."""
    seed: int = 0
    """Of the order."""


def batches(
    dataset: Any, share: Share, *, epoch: int, start: int = 0, collate: Collate | None = None
) -> Iterator[Batch]:
    """Yield this worker's part of each global batch of an epoch, from its step `start` on."""
    samples = len(dataset)
    in_epoch = steps_per_epoch(samples, share.global_batch)
    for index in range(start, in_epoch):
        first = index * share.global_batch
        count = min(share.global_batch, samples - first)
        lanes = []
        for lane in owned_lanes(share.lanes, share.workers, share.rank):
            part = lane_samples(count, share.lanes, lane)
            if len(part):
                chosen = permutation(
                    samples, seed=share.seed, epoch=epoch, start=first + part.start, stop=first + part.stop
                )
                lanes.append(LaneBatch(lane, len(part), fetch(dataset, chosen.tolist(), collate)))
        if not lanes:
            # [Note: filler] A stock collective wants every rank in every step. A worker that ran dry computes
            # one sample that it does not own, with weight 0, so that nothing of it enters the result.
            lanes.append(
                LaneBatch(owned_lanes(share.lanes, share.workers, share.rank)[0], 0, fetch(dataset, [0], collate))
            )
        yield Batch(epoch * in_epoch + index, epoch, count, tuple(lanes))


def fetch(dataset: Any, indices: list[int], collate: Collate | None = None) -> Any:
    """Return the batch of these samples, in one gather where the dataset can."""
    if collate is None:
        if isinstance(dataset, Gathers):
            return dataset.gather(torch.tensor(indices))
        if isinstance(dataset, TensorDataset):
            chosen = torch.tensor(indices)
            return [tensor.index_select(0, chosen) for tensor in dataset.tensors]
    many = getattr(dataset, "__getitems__", None)
    items = many(indices) if callable(many) else [dataset[index] for index in indices]
    return (collate or default_collate)(items)


def to_device(data: Any, device: str) -> Any:
    """Move every tensor of a batch; on the CPU the batch is returned as it is."""
    if device == "cpu":
        return data
    if isinstance(data, Tensor):
        return data.to(device, non_blocking=True)
    if isinstance(data, Mapping):
        return {key: to_device(value, device) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        moved = [to_device(value, device) for value in data]
        return type(data)(*moved) if hasattr(data, "_fields") else type(data)(moved)
    return data
