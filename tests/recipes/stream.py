"""Recipes whose data comes one after another, and one whose last batch leaves a lane one sample."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset, TensorDataset

import lockstep


class Points(IterableDataset[tuple[Tensor, int]]):
    """Thirty points, moved at random in every epoch; it does not say how many."""

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        for number in range(30):
            yield torch.linspace(0, number, 4) + torch.rand(4), number % 3


class Counted(Points):
    """The same with a length."""

    def __len__(self) -> int:
        return 30


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def recipe() -> lockstep.Recipe:
    return lockstep.Recipe(
        model=lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 3)),
        data=Points,
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        global_batch=8,
        lanes=4,
    )


def counted() -> lockstep.Recipe:
    return replace(recipe(), data=Counted, epochs=2)


def normed() -> lockstep.Recipe:
    """Of 21 samples the last batch has 5, and so 3 of its 4 lanes have one."""
    data = TensorDataset(torch.linspace(0, 1, 84).view(21, 4), torch.arange(21) % 3)
    return replace(
        recipe(), data=data, model=lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    )


def images() -> lockstep.Recipe:
    """The same sizes, but one image has enough values for BatchNorm."""
    data = TensorDataset(torch.linspace(0, 1, 21 * 16).view(21, 1, 4, 4), torch.arange(21) % 3)
    layers = [nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3)]
    return replace(recipe(), data=data, model=lambda: nn.Sequential(*layers))


def evaluated_on_a_stream() -> lockstep.Recipe:
    return replace(recipe(), evaluate=lambda model, batch: {"loss": loss(model, batch)})
