"""`mlp`: 6.5 million parameters and small batches, so that communication takes much of the time."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW
from torch.utils.data import TensorDataset

from lockstep.recipe import Recipe

FEATURES, HIDDEN, CLASSES = 256, 1712, 100
SAMPLES, EVAL_SAMPLES = 4096, 512


def recipe() -> Recipe:
    """Return the recipe."""
    return Recipe(
        model=make_model,
        data=lambda: make_data(SAMPLES, part=0),
        eval_data=lambda: make_data(EVAL_SAMPLES, part=1),
        loss=loss,
        evaluate=metrics,
        optimizer=lambda ps: AdamW(ps, lr=1e-3),
        global_batch=64,
        # The same bits on up to 4 workers. 8 lanes of 8 samples would take three times as long as 2 on two workers: its
        # time goes into weights, which every lane reads and whose gradients every lane writes, and not into samples.
        lanes=4,
    )


def make_model() -> nn.Module:
    """Return a perceptron of three hidden layers with dropout; as in `cifar100`, no slope of it jumps."""
    return nn.Sequential(
        nn.Linear(FEATURES, HIDDEN),
        nn.SiLU(),
        nn.Linear(HIDDEN, HIDDEN),
        nn.SiLU(),
        nn.Dropout(0.1),
        nn.Linear(HIDDEN, HIDDEN),
        nn.SiLU(),
        nn.Linear(HIDDEN, CLASSES),
    )


def make_data(samples: int, *, part: int) -> TensorDataset:
    """Return points scattered around one centre per class."""
    centres = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(20))
    generator = torch.Generator().manual_seed(21 + part)
    labels = torch.randint(CLASSES, (samples,), generator=generator)
    points = centres[labels] + 2.0 * torch.randn(samples, FEATURES, generator=generator)
    return TensorDataset(points, labels)


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the mean cross entropy."""
    points, labels = batch
    return F.cross_entropy(model(points), labels)


def metrics(model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    """Return loss and accuracy."""
    points, labels = batch
    scores = model(points)
    return {
        "loss": F.cross_entropy(scores, labels),
        "accuracy": (scores.argmax(1) == labels).float().mean(),
    }
