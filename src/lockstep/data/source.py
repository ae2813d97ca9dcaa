"""What a user may pass as data (a Dataset, a stream, a stock DataLoader), and how samples are read from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, runtime_checkable

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from lockstep.data.augment import Augmented, SampleSeeds, generators_restored
from lockstep.errors import BadInput

Collate = Callable[[list[Any]], Any]


@runtime_checkable
class GatheringDataset(Protocol):
    """A dataset that makes a whole batch in one call, and draws no random numbers for it."""

    def gather(self, indices: Any) -> Any:
        """Return the batch of these samples."""
        ...


@dataclass(frozen=True)
class Source:
    """Where samples come from."""

    dataset: Any
    """With `__getitem__` and `__len__`, or a stream."""
    collate: Collate | None
    """Makes a batch of a list of samples; None: one gather, or torch's default."""
    loader: DataLoader[Any] | None = None
    """A stock DataLoader whose worker processes do the reading."""
    drop_last: bool = False
    """Whether a stock DataLoader says that a short last batch is dropped."""
    in_order: bool = False
    """Whether a stock DataLoader says that samples are read in the dataset's order."""

    @property
    def stream(self) -> bool:
        """Whether samples can only be read one after another."""
        return is_stream(self.dataset)

    @property
    def samples(self) -> int | None:
        """How many samples an epoch has; None for a stream that does not say."""
        return len(self.dataset) if isinstance(self.dataset, Sized) else None

    @property
    def draws_no_random_numbers(self) -> bool:
        """Whether reading certainly draws no random numbers of the process, and so may run on a thread."""
        if self.collate is not None:
            return False
        inner = self.dataset.dataset if isinstance(self.dataset, Augmented) else self.dataset
        return isinstance(inner, (GatheringDataset, TensorDataset, list, tuple))


def is_stream(dataset: Any) -> bool:
    """Say whether samples can only be read one after another, from the start."""
    return isinstance(dataset, IterableDataset) or (
        hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__")
    )


def open_source(data: Any, collate: Collate | None = None, global_batch: int | None = None) -> Source:
    """Return the source of what was passed; what a DataLoader says beyond it is honoured or refused.

    Its batch size must be the global batch, or the 1 that a DataLoader has where none is given.
    """
    if not isinstance(data, DataLoader):
        return Source(data, collate)
    stream = isinstance(data.dataset, IterableDataset)
    _check_batches(data, global_batch)
    if stream and data.num_workers:
        raise BadInput(
            f"the DataLoader has num_workers={data.num_workers}, which would change the order of its IterableDataset: "
            "use num_workers=0, or pass the IterableDataset itself"
        )
    if not stream:
        _check_sampler(data.sampler, len(data.dataset))  # type: ignore[arg-type]
    own = None if data.collate_fn is default_collate else data.collate_fn
    return Source(
        data.dataset,
        collate or own,
        data if data.num_workers else None,
        drop_last=data.drop_last,
        in_order=isinstance(data.sampler, SequentialSampler),
    )


def _check_batches(loader: DataLoader[Any], global_batch: int | None) -> None:
    """Refuse batches that cannot be cut into lanes, or are not the global batch."""
    if loader.batch_size is None and loader.batch_sampler is None:
        raise BadInput(
            "the DataLoader has batch_size=None, so its dataset returns whole batches, and Lockstep cuts batches into "
            "lanes by samples: pass a dataset that returns one sample at a time"
        )
    if loader.batch_sampler is not None and type(loader.batch_sampler) is not BatchSampler:
        raise BadInput(
            f"the DataLoader has a {type(loader.batch_sampler).__name__}, but Lockstep makes the batches: leave the "
            "batch_sampler out, or pass the dataset"
        )
    if loader.batch_size is None:
        raise BadInput(
            "the DataLoader has a batch_sampler, but Lockstep makes the batches: give the DataLoader batch_size, "
            "shuffle and drop_last instead"
        )
    if global_batch is not None and loader.batch_size not in (1, global_batch):
        raise BadInput(
            f"the DataLoader has batch_size={loader.batch_size}, expected the global batch of {global_batch}: use "
            f"batch_size={global_batch} (the batch over all workers), or pass its dataset"
        )


def _check_sampler(sampler: Any, samples: int) -> None:
    """Refuse an order that is neither the dataset's nor a shuffled one in which every sample comes once."""
    if type(sampler) not in (SequentialSampler, RandomSampler):
        raise BadInput(
            f"the DataLoader has a {type(sampler).__name__}, but Lockstep orders samples by the seed and the epoch: "
            "leave the sampler out, or pass its dataset"
        )
    if isinstance(sampler, RandomSampler) and (sampler.replacement or sampler.num_samples != samples):
        raise BadInput(
            f"the DataLoader has a RandomSampler with replacement={sampler.replacement} and "
            f"num_samples={sampler.num_samples}, but in an epoch of Lockstep each of the {samples} samples comes once: "
            "use shuffle=True instead"
        )


def fetch(dataset: Any, indices: list[int], collate: Collate | None = None, seeds: SampleSeeds | None = None) -> Any:
    """Return the batch of these samples, in one gather if the dataset has it; errors name the sample."""
    if isinstance(dataset, Augmented) and seeds is not None:
        items = [_read(lambda i: dataset.changed(i, seeds.of(i)), index, dataset) for index in indices]
        return _make_batch(indices, collate or _own_collate(dataset.dataset), items)
    if collate is None and isinstance(dataset, (GatheringDataset, TensorDataset)):
        return _make_batch(indices, lambda chosen: _gather(dataset, chosen), indices)
    if seeds is None or not seeds.seeds_process or isinstance(dataset, (list, tuple)):
        get_items = getattr(dataset, "__getitems__", None)
        if callable(get_items):
            return _make_batch(indices, lambda chosen: (collate or default_collate)(get_items(chosen)), indices)
        items = [_read(dataset.__getitem__, index, dataset) for index in indices]
        return _make_batch(indices, collate or default_collate, items)
    with generators_restored():
        items = []
        for index in indices:
            seeds.seed_process(index)
            items.append(_read(dataset.__getitem__, index, dataset))
        return _make_batch(indices, collate or default_collate, items)


def read_stream(dataset: Iterable[Any], seeds: SampleSeeds) -> Iterator[Any]:
    """Yield the samples of a stream; the random generators are seeded for each of them."""
    if callable(begin := getattr(dataset, "set_epoch", None)):
        begin(seeds.epoch)
    with generators_restored():
        source, position = iter(dataset), 0
    while True:
        with generators_restored():
            seeds.seed_process(position)
            try:
                item = next(source)
            except StopIteration:
                return
            except Exception as error:
                error.add_note(f"while reading sample {position} of {type(dataset).__name__}")
                raise
        yield item
        position += 1


def first_samples(source: Source, count: int) -> Any:
    """Return the first samples as one batch."""
    if source.stream:
        samples = list(islice(read_stream(source.dataset, SampleSeeds(0, 0)), count))
        return (source.collate or default_collate)(samples)
    return fetch(source.dataset, list(range(min(count, source.samples or count))), source.collate)


def _own_collate(dataset: Any) -> Collate:
    """Return the function that makes batches of a dataset's own items."""
    own = getattr(dataset, "collate", None)
    return own if callable(own) else default_collate


def _gather(dataset: Any, indices: list[int]) -> Any:
    if isinstance(dataset, TensorDataset):
        chosen = torch.tensor(indices)
        return [tensor.index_select(0, chosen) for tensor in dataset.tensors]
    return dataset.gather(torch.tensor(indices))


def _read(read: Callable[[int], Any], index: int, dataset: Any) -> Any:
    try:
        return read(index)
    except Exception as error:
        error.add_note(f"while reading sample {index} of {type(dataset).__name__}")
        raise


def _make_batch(indices: list[int], make: Callable[[Any], Any], items: Any) -> Any:
    try:
        return make(items)
    except Exception as error:
        listed = ", ".join(map(str, indices[:8])) + (", ..." if len(indices) > 8 else "")
        error.add_note(f"while making a batch of the samples {listed}")
        raise
