"""Batches by lane: each worker reads only the samples of its own lanes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from lockstep.data.augment import SampleSeeds
from lockstep.data.prefetch import prefetched
from lockstep.data.sampler import permutation
from lockstep.data.source import Collate, Source, fetch, open_source, read_stream
from lockstep.errors import BadInput
from lockstep.lanes.schedule import lane_samples, owned_lanes, steps_per_epoch

__all__ = ["Batch", "Collate", "LaneBatch", "Share", "batches", "fetch", "to_device"]

PREFETCH = 2  # batches that are read ahead where that cannot change a bit


@dataclass(frozen=True)
class LaneBatch:
    """The samples of one lane in one step."""

    lane: int
    """Which lane of the global batch."""
    samples: int
    """How many samples it has; 0 for the filler of a worker without samples."""
    data: Any
    """The batch that the loss gets."""


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
    """This worker's lanes with samples; if there is none, one filler of weight 0."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """Which samples of each step a worker reads: how the batch is cut, and which worker it is."""

    global_batch: int
    """Samples per step over all workers."""
    lanes: int
    """Slices per step over all workers."""
    workers: int = 1
    """How many workers share a step."""
    rank: int = 0
    """Which of them this is."""
    seed: int = 0
    """Of the order of samples."""
    drop_last: bool = False
    """Whether a short last batch of an epoch is left out."""
    in_turn: bool = False
    """Whether lanes are dealt out in turn; else a worker has contiguous ones."""

    @property
    def owned(self) -> range:
        """The lanes of this worker."""
        return owned_lanes(self.lanes, self.workers, self.rank, in_turn=self.in_turn)

    def steps(self, samples: int) -> int:
        """Return how many steps an epoch of so many samples has."""
        return steps_per_epoch(samples, self.global_batch, drop_last=self.drop_last)


@dataclass(frozen=True)
class StepSamples:
    """The samples of one step that this worker reads."""

    index: int
    """Of the step in its epoch."""
    samples: int
    """Of the global batch."""
    lanes: tuple[tuple[int, int, list[int]], ...]
    """(lane, how many of its samples count, their indices)."""


@dataclass(frozen=True)
class Epoch:
    """The samples of each step of an epoch for one worker, computed while iterating; the same every time."""

    samples: int
    """In the data."""
    share: Share
    """Whose lanes."""
    epoch: int
    """Which pass over the data."""
    start: int = 0
    """From which step on."""
    in_order: bool = False
    """Whether the samples come in the dataset's own order; else in that of the seed and the epoch."""

    def __iter__(self) -> Iterator[StepSamples]:
        share = self.share
        mine = share.owned
        for index in range(self.start, share.steps(self.samples)):
            first = index * share.global_batch
            count = min(share.global_batch, self.samples - first)
            parts = [(lane, lane_samples(count, share.lanes, lane)) for lane in mine]
            lanes = tuple((lane, len(part), self._chosen(first, part)) for lane, part in parts if len(part))
            # [Note: filler] Stock collectives need every rank in every step. A worker without samples computes one
            # sample that it does not own, with weight 0, so that it does not change the result.
            yield StepSamples(index, count, lanes or ((mine[0], 0, [0]),))

    def _chosen(self, first: int, part: range) -> list[int]:
        start, stop = first + part.start, first + part.stop
        if self.in_order:
            return list(range(start, stop))
        chosen = permutation(self.samples, seed=self.share.seed, epoch=self.epoch, start=start, stop=stop)
        numbers: list[int] = chosen.tolist()
        return numbers


@dataclass(frozen=True)
class Reader:
    """Reads the samples of a step; also used as the dataset of a stock DataLoader's worker processes."""

    source: Source
    """The samples."""
    seeds: SampleSeeds
    """The seeds of their random numbers."""

    def __getitem__(self, step: StepSamples) -> tuple[StepSamples, list[Any]]:
        read = [fetch(self.source.dataset, chosen, self.source.collate, self.seeds) for _, _, chosen in step.lanes]
        return step, read


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

    `prefetch` batches are read ahead on a thread. None means 2 if reading certainly draws no random numbers of the
    process, else 0, because dropout draws from them at the same time.
    `first_step` is the number of the first step of a stream without a length.
    """
    source = open_source(data, collate, share.global_batch)
    share = replace(share, drop_last=share.drop_last or source.drop_last)
    samples = source.samples
    if source.stream:
        before = first_step if samples is None else epoch * share.steps(samples) + start
        yield from _streamed(source, share, SampleSeeds(share.seed, epoch), start, before)
        return
    if samples is None:
        raise BadInput(f"a {type(source.dataset).__name__} has no length: add __len__, the number of samples")
    before = epoch * share.steps(samples)
    for step, parts in _read(source, Epoch(samples, share, epoch, start, source.in_order), prefetch):
        lanes = (LaneBatch(lane, count, part) for (lane, count, _), part in zip(step.lanes, parts, strict=True))
        yield Batch(before + step.index, epoch, step.samples, tuple(lanes))


def _read(source: Source, epoch: Epoch, prefetch: int | None) -> Iterator[tuple[StepSamples, list[Any]]]:
    """Read the samples of every step: here, on a thread, or in the worker processes of a stock DataLoader."""
    seeds = SampleSeeds(epoch.share.seed, epoch.epoch)
    if source.loader is not None:
        return iter(_with_workers(source, Reader(replace(source, loader=None), seeds), epoch))
    depth = (PREFETCH if source.draws_no_random_numbers else 0) if prefetch is None else prefetch
    reader = Reader(source, replace(seeds, seeds_process=not depth))
    read = (reader[step] for step in epoch)
    return prefetched(read, depth) if depth else read


def _with_workers(source: Source, reader: Reader, epoch: Epoch) -> DataLoader[Any]:
    theirs = source.loader
    assert theirs is not None
    return DataLoader(
        reader,  # type: ignore[arg-type]  # its index is a StepSamples, not a number
        batch_size=None,
        sampler=epoch,  # an iterable is enough: its length is not used
        num_workers=theirs.num_workers,
        pin_memory=theirs.pin_memory,
        timeout=theirs.timeout,
        worker_init_fn=theirs.worker_init_fn,
        multiprocessing_context=theirs.multiprocessing_context,
        prefetch_factor=theirs.prefetch_factor,
    )


def _streamed(source: Source, share: Share, seeds: SampleSeeds, start: int, first_step: int) -> Iterator[Batch]:
    """Cut a stream into the same lanes for any number of workers: each reads all of it and keeps its own lanes."""
    stream = read_stream(source.dataset, seeds)
    mine = share.owned
    collate = source.collate or default_collate
    read = sum(1 for _ in itertools.islice(stream, start * share.global_batch))
    for index in itertools.count():
        samples = list(itertools.islice(stream, share.global_batch))
        read += len(samples)
        _check_length(source, read, ended=len(samples) < share.global_batch)
        if not samples or (share.drop_last and len(samples) < share.global_batch):
            break
        parts = [(lane, lane_samples(len(samples), share.lanes, lane)) for lane in mine]
        lanes = [LaneBatch(lane, len(part), collate([samples[i] for i in part])) for lane, part in parts if len(part)]
        lanes = lanes or [LaneBatch(mine[0], 0, collate(samples[:1]))]  # see [Note: filler]
        yield Batch(first_step + index, seeds.epoch, len(samples), tuple(lanes))
    if read < share.global_batch and (share.drop_last or not read):
        raise BadInput(
            f"epoch {seeds.epoch} of {type(source.dataset).__name__} has {read} samples, expected at least "
            f"{share.global_batch if share.drop_last else 1}: each call of its __iter__ must begin the stream anew"
        )


def _check_length(source: Source, read: int, *, ended: bool) -> None:
    """Refuse a stream whose __len__ is wrong: steps are numbered by it."""
    said = source.samples
    if said is not None and (read > said or (ended and read < said)):
        name = type(source.dataset).__name__
        raise BadInput(
            f"{name} has {'more than ' if read > said else ''}{min(read, said)} samples, and its __len__ returns "
            f"{said}: return the number of samples that __iter__ yields, or remove __len__"
        )


def to_device(data: Any, device: str) -> Any:
    """Move every tensor of a batch to a device; for the CPU the batch is returned unchanged."""
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
