"""What a user may pass as data: a Dataset, a stream, a stock DataLoader; and how samples are read from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from lockstep.data.augment import Augmented, Draw, generators_restored
from lockstep.errors import BadInput

Collate = Callable[[list[Any]], Any]


@runtime_checkable
class Gathers(Protocol):
    """A dataset that makes a whole batch in one go, and draws no random numbers for it."""

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
    """A stock DataLoader whose worker processes are to do the reading."""

    @property
    def stream(self) -> bool:
        """Whether samples come only in order."""
        return isinstance(self.dataset, IterableDataset)

    @property
    def quiet(self) -> bool:
        """Whether reading surely draws nothing from the process's random numbers, and so may run on a thread."""
        if self.collate is not None:
            return False
        inner = self.dataset.dataset if isinstance(self.dataset, Augmented) else self.dataset
        return isinstance(inner, (Gathers, TensorDataset, list, tuple))


def open_source(data: Any, collate: Collate | None = None, global_batch: int | None = None) -> Source:
    """Look at what was passed; a DataLoader lends its dataset, its collate and its workers, not its order."""
    if not isinstance(data, DataLoader):
        return Source(data, collate)
    if global_batch is not None and data.batch_size not in (None, 1, global_batch):
        raise BadInput(
            f"the DataLoader makes batches of {data.batch_size}, and the global batch is {global_batch}: give it "
            f"batch_size={global_batch} (the batch over all workers), or pass its dataset"
        )
    stream = isinstance(data.dataset, IterableDataset)
    if not stream and not isinstance(data.sampler, (SequentialSampler, RandomSampler)):
        raise BadInput(
            f"the DataLoader has a {type(data.sampler).__name__}: the order of samples follows from the seed and the "
            "epoch here; leave the sampler out, or pass its dataset"
        )
    if stream and data.num_workers:
        raise BadInput(
            "a stream cannot be read by the workers of a DataLoader without changing its order: use num_workers=0, or "
            "pass the IterableDataset itself"
        )
    own = None if data.collate_fn is default_collate else data.collate_fn
    return Source(data.dataset, collate or own, data if data.num_workers else None)


def count_samples(data: Any) -> int:
    """Return how many samples an epoch has."""
    dataset = open_source(data).dataset
    if not isinstance(dataset, Sized):
        raise BadInput(f"a {type(dataset).__name__} has no length: give it __len__, the samples of an epoch")
    return len(dataset)


def fetch(dataset: Any, indices: list[int], collate: Collate | None = None, draw: Draw | None = None) -> Any:
    """Return the batch of these samples, in one gather where the dataset can; an error names the sample."""
    if isinstance(dataset, Augmented) and draw is not None:
        items = [_read(lambda i: dataset.drawn(i, draw.of(i)), index, dataset) for index in indices]
        return _together(indices, collate or _natural(dataset.dataset), items)
    if collate is None and isinstance(dataset, (Gathers, TensorDataset)):
        return _together(indices, lambda chosen: _gather(dataset, chosen), indices)
    if draw is None or not draw.everywhere or isinstance(dataset, (list, tuple)):
        many = getattr(dataset, "__getitems__", None)
        if callable(many):
            return _together(indices, lambda chosen: (collate or default_collate)(many(chosen)), indices)
        items = [_read(dataset.__getitem__, index, dataset) for index in indices]
        return _together(indices, collate or default_collate, items)
    with generators_restored():
        items = []
        for index in indices:
            draw.begin(index)
            items.append(_read(dataset.__getitem__, index, dataset))
        return _together(indices, collate or default_collate, items)


def read_stream(dataset: Iterable[Any], draw: Draw) -> Iterator[Any]:
    """Yield the samples of a stream, each with random numbers of its own."""
    if callable(begin := getattr(dataset, "set_epoch", None)):
        begin(draw.epoch)
    with generators_restored():
        source, position = iter(dataset), 0
    while True:
        with generators_restored():
            draw.begin(position)
            try:
                item = next(source)
            except StopIteration:
                return
            except Exception as error:
                error.add_note(f"while reading sample {position} of {type(dataset).__name__}")
                raise
        yield item
        position += 1


def _natural(dataset: Any) -> Collate:
    """Return how a dataset's own items are batched."""
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


def _together(indices: list[int], make: Callable[[Any], Any], items: Any) -> Any:
    try:
        return make(items)
    except Exception as error:
        shown = ", ".join(map(str, indices[:8])) + (", ..." if len(indices) > 8 else "")
        error.add_note(f"while making a batch of the samples {shown}")
        raise
