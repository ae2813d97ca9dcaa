"""`cifar100`: a small ResNet with BatchNorm on CIFAR-100, or on generated images of the same shape and labels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD
from torch.utils.data import TensorDataset, default_collate

from lockstep.data.cifar100_archive import open_images
from lockstep.recipe import Recipe
from lockstep.recipes.mlp import loss, metrics

CLASSES = 100
SAMPLES, EVAL_SAMPLES = 3200, 640


def recipe(data: str | None = None) -> Recipe:
    """Return the recipe; `data` is the standard archive, or the folder unpacked from it."""
    return Recipe(
        model=ResNet,
        data=lambda: make_images(SAMPLES, part=0) if data is None else open_images(data, "train"),
        eval_data=lambda: make_images(EVAL_SAMPLES, part=1) if data is None else open_images(data, "test"),
        loss=loss,
        evaluate=metrics,
        optimizer=lambda ps: SGD(ps, lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4),
        global_batch=64,
        lanes=8,  # the same bits on up to 8 workers
        stages=lambda model: [model.enter, *model.get_submodule("stages").children(), model.pool, model.head],
    )


def float64(data: str | None = None) -> Recipe:
    """Return `cifar100:float64`, the same in double precision: for comparisons that rounding must not blur."""
    return recipe(data).override(model=lambda: ResNet().double(), collate=_collate_float64, name="cifar100:float64")


def _collate_float64(samples: list[Any]) -> tuple[Tensor, Tensor]:
    images, labels = default_collate(samples)
    return images.double(), labels


class ResidualBlock(nn.Module):
    """Two convolutions with a shortcut.

    SiLU, not ReLU: rounding cannot make its gradient jump, so other frameworks and other orders of a sum stay near.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, images: Tensor) -> Tensor:
        """Return the block's output."""
        inner = F.silu(self.first_norm(self.first(images)))
        return F.silu(self.second_norm(self.second(inner)) + self.shortcut(images))


class ResNet(nn.Module):
    """Three stages over 16 x 16, 8 x 8 and 4 x 4 positions; 0.3 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, 2, 1, bias=False)
        self.stem_norm = nn.BatchNorm2d(32)
        self.stages = nn.Sequential(ResidualBlock(32, 32, 1), ResidualBlock(32, 64, 2), ResidualBlock(64, 96, 2))
        self.head = nn.Linear(96, CLASSES)

    def enter(self, images: Tensor) -> Tensor:
        """Return 32 channels of half the size."""
        return F.silu(self.stem_norm(self.stem(images)))

    def pool(self, inner: Tensor) -> Tensor:
        """Return the mean over positions."""
        return inner.mean((2, 3))

    def forward(self, images: Tensor) -> Tensor:
        """Return a score per class."""
        scores: Tensor = self.head(self.pool(self.stages(self.enter(images))))
        return scores


def make_images(samples: int, *, part: int) -> TensorDataset:
    """Return images of the smooth pattern of their class, shifted, with varied contrast and noise."""
    patterns = torch.randn(CLASSES, 3, 8, 8, generator=torch.Generator().manual_seed(30))
    patterns = F.interpolate(patterns, size=(32, 32), mode="bilinear", align_corners=False)
    generator = torch.Generator().manual_seed(31 + part)
    labels = torch.randint(CLASSES, (samples,), generator=generator)
    shifts = torch.randint(-3, 4, (samples, 2), generator=generator).tolist()
    contrast = torch.rand(samples, 1, 1, 1, generator=generator) + 0.5
    # In place and a few at a time: copies of all images would be the most memory that a worker ever takes.
    images = torch.empty(samples, 3, 32, 32)
    for image, k, (dy, dx) in zip(images, labels.tolist(), shifts, strict=True):
        image.copy_(torch.roll(patterns[k], (dy, dx), (1, 2)))
    for some, theirs in zip(torch.split(images, 64), torch.split(contrast, 64), strict=True):
        some.mul_(theirs).add_(torch.randn(some.shape, generator=generator).mul_(0.8))
    return TensorDataset(images, labels)
