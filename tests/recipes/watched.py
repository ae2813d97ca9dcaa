"""The small recipe with evaluations that would leave a trace, if they were let."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import tiny  # the folder of a recipe is on the path
import torch
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
