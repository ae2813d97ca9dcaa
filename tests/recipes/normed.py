"""A recipe with BatchNorm whose last batch has one sample: one worker runs dry."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD
from torch.utils.data import TensorDataset

from lockstep import Recipe


def recipe() -> Recipe:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(9, 3, 4, 4, generator=generator)
    return Recipe(
        model=lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 3)),
        data=TensorDataset(images, torch.arange(9) % 3),
        loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        optimizer=lambda ps: SGD(ps, lr=0.1),
        global_batch=4,
    )
