"""The small recipe with evaluations that would leave a trace, if they were let."""

import os
import random
import signal
from dataclasses import replace
from typing import Any

import numpy as np
import tiny  # the folder of a recipe is on the path
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import Dataset

from lockstep import Recipe


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Draws from every generator of the process for each sample."""

    def __init__(self) -> None:
        self.samples = tiny.make_data(30)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs, label = self.samples[index]
        return inputs + 0.01 * (torch.randn(8) + random.random() + float(np.random.rand())), label


def careless(model: nn.Module, batch: list[Tensor]) -> dict[str, Tensor]:
    """Leave the model in another mode, with other statistics, and the generators elsewhere."""
    inputs, labels = batch
    outputs = model(inputs)
    model.train()
    model(torch.cat([inputs, torch.randn(2, 8)]) * 100)
    torch.manual_seed(7)
    return {
        "accuracy": (outputs.argmax(1) == labels).float().mean(),
        "loss": nn.functional.cross_entropy(outputs, labels),
    }


def recipe(**changes: Any) -> Recipe:
    return replace(tiny.recipe(), eval_data=Noisy, evaluate=careless, **changes)


def without() -> Recipe:
    return replace(tiny.recipe(), evaluate=None)


class Scripted:
    """Returns one value after another as accuracy, by the number of steps that were done."""

    def __init__(self, *values: float) -> None:
        self.values = values

    def __call__(self, model: nn.Module, batch: list[Tensor]) -> dict[str, float]:
        steps = int(model[1].num_batches_tracked)  # type: ignore[index]
        return {"accuracy": self.values[steps], "rest": 0.0}


VALUES = (0.0, 0.1, 0.2, 0.3, 0.9, 0.5, 0.6, 0.7, 0.8, 0.85, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1)
"""The best is after 4 steps."""


def peaks() -> Recipe:
    return replace(tiny.recipe(), evaluate=Scripted(*VALUES))


def peaks_and_dies() -> Recipe:
    """Rank 1 is gone in step 5, after the best evaluation and one more."""
    calls = 0

    def deadly(model: nn.Module, batch: list[Tensor]) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 2 * 6 and dist.get_rank() == 1:  # two lanes in each step
            os.kill(os.getpid(), signal.SIGKILL)
        return tiny.loss(model, batch)

    return replace(peaks(), loss=deadly)
