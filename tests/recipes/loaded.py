"""A recipe whose data is a stock DataLoader with worker processes that must find this file's classes by name."""

from __future__ import annotations

import os

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import lockstep


class Points(Dataset[tuple[Tensor, int]]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.linspace(0, index, 4), index % 3


def collate(samples: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    return torch.stack([point for point, _ in samples]), torch.tensor([label for _, label in samples])


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def recipe() -> lockstep.Recipe:
    method = os.environ.get("LOADER_METHOD") or None  # None: whatever a process of this kind does
    return lockstep.Recipe(
        model=lambda: nn.Linear(4, 3),
        data=lambda: DataLoader(Points(), num_workers=2, collate_fn=collate, multiprocessing_context=method),
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        global_batch=8,
        lanes=2,
    )
