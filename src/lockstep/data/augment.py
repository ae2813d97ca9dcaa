"""Random changes to samples: seeded by (seed, epoch, sample), so that no worker, order or restart shows in them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from lockstep.seeding import derive


@dataclass(frozen=True)
class Draw:
    """The random numbers of one epoch's samples."""

    seed: int
    """Of the run."""
    epoch: int
    """Which pass over the data."""
    everywhere: bool = True
    """Whether a sample may draw from the generators of the process; false on a thread, where dropout draws too."""

    def of(self, sample: int) -> int:
        """Return the seed of one sample."""
        return derive("sample", self.seed, self.epoch, sample)

    def begin(self, sample: int) -> None:
        """Set the generators of the process to one sample's own stream."""
        seed = self.of(sample)
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)


@contextmanager
def generators_restored() -> Iterator[None]:
    """Put the generators of the process back to where they were: they are the caller's, not the samples'."""
    before = torch.default_generator.get_state(), random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        torch.default_generator.set_state(before[0])
        random.setstate(before[1])
        np.random.set_state(before[2])


class Augmented(Dataset[Any]):
    """A dataset with a random change to each sample, drawn from a generator that it is given.

        data = Augmented(ragged, lambda sample, generator: sample + torch.randn(sample.shape, generator=generator))

    Indexing gives the sample as it is, which is what evaluation wants; training asks for the changed one.
    """

    def __init__(self, dataset: Any, change: Callable[[Any, torch.Generator], Any]) -> None:
        self.dataset = dataset
        self.change = change

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]

    def drawn(self, index: int, seed: int) -> Any:
        """Return one sample, changed as its seed says."""
        return self.change(self.dataset[index], torch.Generator().manual_seed(seed))
