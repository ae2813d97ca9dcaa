"""The first batch of a huge epoch: ours, and the indices of the stock sampler."""

from __future__ import annotations

import time
from typing import Any

import psutil
import torch
from torch.utils.data import Dataset, DistributedSampler

from lockstep.data.loader import Share, batches

SAMPLER_BYTES = 64
"""What the stock sampler needs for each sample: its permutation, and a Python int in a list."""


class Numbers(Dataset[Any]):
    """Its own numbers, without holding them."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def gather(self, indices: Any) -> Any:
        """Return the numbers that were asked for."""
        return torch.as_tensor(indices)


def first_batches(samples: int) -> tuple[int, float, float]:
    """Return how many samples memory had room for, our seconds, and the stock sampler's."""
    samples = min(samples, psutil.virtual_memory().available // SAMPLER_BYTES)
    numbers = Numbers(samples)
    share = Share(global_batch=256, lanes=4, workers=4)
    began = time.perf_counter()
    next(batches(numbers, share, epoch=0, prefetch=0))
    ours = time.perf_counter()
    next(iter(DistributedSampler(numbers, 4, 0)))
    return samples, ours - began, time.perf_counter() - ours
