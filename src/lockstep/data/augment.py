"""Random changes to samples, seeded by (seed, epoch, sample): independent of workers, order and restarts."""

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
class SampleSeeds:
    """The seeds of the random numbers of one epoch's samples."""

    seed: int
    """Of the run."""
    epoch: int
    """Which pass over the data."""
    seeds_process: bool = True
    """Whether to seed the generators of the process for each sample; not on a thread, because dropout uses them too."""

    def of(self, sample: int) -> int:
        """Return the seed of one sample."""
        return derive("sample", self.seed, self.epoch, sample)

    def seed_process(self, sample: int) -> None:
        """Seed the generators of the process for one sample."""
        seed = self.of(sample)
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)


@contextmanager
def generators_restored() -> Iterator[None]:
    """Restore the state of the process's generators afterwards: they belong to the caller."""
    before = torch.default_generator.get_state(), random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        torch.default_generator.set_state(before[0])
        random.setstate(before[1])
        np.random.set_state(before[2])


class Augmented(Dataset[Any]):
    """A dataset with a random change to each sample; `change` gets a generator that is seeded for the sample.

        data = Augmented(ragged, lambda sample, generator: sample + torch.randn(sample.shape, generator=generator))

    Indexing returns the sample unchanged, as evaluation needs it; training uses `changed`.
    """

    def __init__(self, dataset: Any, change: Callable[[Any, torch.Generator], Any]) -> None:
        self.dataset = dataset
        self.change = change

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]

    def changed(self, index: int, seed: int) -> Any:
        """Return one sample, changed with random numbers of this seed."""
        return self.change(self.dataset[index], torch.Generator().manual_seed(seed))
