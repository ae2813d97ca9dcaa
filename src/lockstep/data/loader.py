"""Batches by lane: each worker reads the samples of its own lanes and no others."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sized
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from lockstep.data.augment import Draw
from lockstep.data.prefetch import prefetched
from lockstep.data.sampler import permutation
from lockstep.data.source import Collate, Source, fetch, open_source, read_stream
from lockstep.lanes.schedule import lane_samples, owned_lanes, steps_per_epoch

__all__ = ["Batch", "Collate", "LaneBatch", "Share", "batches", "fetch", "to_device"]

PREFETCH = 2  # batches made ahead where that cannot change a bit


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


@dataclass(frozen=True)
class Order:
    """The samples of one step that this worker is to read."""

    index: int
    """Of the step in its epoch."""
    samples: int
    """Of the global batch."""
    lanes: tuple[tuple[int, int, list[int]], ...]
    """Lane, how many of its samples count, and which they are."""


@dataclass(frozen=True)
class Epoch:
    """The orders of one worker for an epoch, computed as they are asked for and the same every time."""

    samples: int
    """In the data."""
    share: Share
    """Whose lanes."""
    epoch: int
    """Which pass over the data."""
    start: int = 0
    """From which step on."""

    def __iter__(self) -> Iterator[Order]:
        share = self.share
        mine = owned_lanes(share.lanes, share.workers, share.rank)
        for index in range(self.start, steps_per_epoch(self.samples, share.global_batch)):
            first = index * share.global_batch
            count = min(share.global_batch, self.samples - first)
            parts = [(lane, lane_samples(count, share.lanes, lane)) for lane in mine]
            lanes = tuple((lane, len(part), self._chosen(first, part)) for lane, part in parts if len(part))
            # [Note: filler] A stock collective wants every rank in every step. A worker that ran dry computes
            # one sample that it does not own, with weight 0, so that nothing of it enters the result.
            yield Order(index, count, lanes or ((mine[0], 0, [0]),))

    def _chosen(self, first: int, part: range) -> list[int]:
        start, stop = first + part.start, first + part.stop
        chosen = permutation(self.samples, seed=self.share.seed, epoch=self.epoch, start=start, stop=stop)
        numbers: list[int] = chosen.tolist()
        return numbers


@dataclass(frozen=True)
class Reader:
    """Reads orders; also what a stock DataLoader's worker processes get."""

    source: Source
    """Where the samples are."""
    draw: Draw
    """Their random numbers."""

    def __getitem__(self, order: Order) -> tuple[Order, list[Any]]:
        read = [fetch(self.source.dataset, chosen, self.source.collate, self.draw) for _, _, chosen in order.lanes]
        return order, read


def batches(
    data: Any,
    share: Share,
    *,
    epoch: int,
    start: int = 0,
    collate: Collate | None = None,
    prefetch: int | None = None,
    first_step: int = 0,
) -> Iterator[Batch]:
    """Yield this worker's part of each global batch of an epoch, from its step `start` on.

    `prefetch` batches are made ahead on a thread. None: as many as is good where reading surely draws no
    random numbers of the process, and none where it may, because dropout draws from them at the same time.
    `first_step` is the number of the first step, for a stream that has no length to count by.
    """
    source = open_source(data, collate, share.global_batch)
    if source.stream:
        yield from _streamed(source, share, Draw(share.seed, epoch), start, first_step)
        return
    samples = len(source.dataset)
    before = epoch * steps_per_epoch(samples, share.global_batch)
    for order, parts in _read(source, Epoch(samples, share, epoch, start), prefetch):
        lanes = (LaneBatch(lane, count, part) for (lane, count, _), part in zip(order.lanes, parts, strict=True))
        yield Batch(before + order.index, epoch, order.samples, tuple(lanes))


def _read(source: Source, todo: Epoch, prefetch: int | None) -> Iterator[tuple[Order, list[Any]]]:
    """Read every order: here, on a thread, or in the worker processes of a stock DataLoader."""
    draw = Draw(todo.share.seed, todo.epoch)
    if source.loader is not None:
        return iter(_with_workers(source, Reader(replace(source, loader=None), draw), todo))
    depth = (PREFETCH if source.quiet else 0) if prefetch is None else prefetch
    reader = Reader(source, replace(draw, everywhere=not depth))
    read = (reader[order] for order in todo)
    return prefetched(read, depth) if depth else read


def _with_workers(source: Source, reader: Reader, todo: Epoch) -> DataLoader[Any]:
    theirs = source.loader
    assert theirs is not None
    return DataLoader(
        reader,  # type: ignore[arg-type]  # read by order, not by number
        batch_size=None,
        sampler=todo,  # an iterable is enough, and its length is not asked for
        num_workers=theirs.num_workers,
        pin_memory=theirs.pin_memory,
        timeout=theirs.timeout,
        worker_init_fn=theirs.worker_init_fn,
        multiprocessing_context=theirs.multiprocessing_context,
        prefetch_factor=theirs.prefetch_factor,
    )


def _streamed(source: Source, share: Share, draw: Draw, start: int, first_step: int) -> Iterator[Batch]:
    """Cut a stream into the same lanes for any number of workers: each reads all of it and keeps its own part."""
    if isinstance(source.dataset, Sized):
        first_step = draw.epoch * steps_per_epoch(len(source.dataset), share.global_batch) + start
    items = read_stream(source.dataset, draw)
    mine = owned_lanes(share.lanes, share.workers, share.rank)
    collate = source.collate or default_collate
    for _ in itertools.islice(items, start * share.global_batch):
        pass
    for index in itertools.count():
        held = list(itertools.islice(items, share.global_batch))
        if not held:
            return
        parts = [(lane, lane_samples(len(held), share.lanes, lane)) for lane in mine]
        lanes = [LaneBatch(lane, len(part), collate([held[i] for i in part])) for lane, part in parts if len(part)]
        lanes = lanes or [LaneBatch(mine[0], 0, collate(held[:1]))]  # see [Note: filler]
        yield Batch(first_step + index, draw.epoch, len(held), tuple(lanes))


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
