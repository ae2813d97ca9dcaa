"""A deep model whose activations take the most memory, three ways: plain, in bfloat16, with activation checkpoints.

lockstep fit deep_recipe.py --memory 340MiB
lockstep fit deep_recipe.py:in_bfloat16 --memory 340MiB
lockstep fit deep_recipe.py:with_checkpoints --memory 340MiB
"""

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from lockstep import Recipe

WIDTH, HIDDEN, DEPTH, CLASSES = 64, 256, 8, 10


class Block(nn.Module):
    """Two layers with a shortcut; with `lean`, backward computes what is inside again instead of keeping it."""

    def __init__(self, *, lean: bool) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH))
        self.lean = lean

    def forward(self, values: Tensor) -> Tensor:
        """Return the block's output."""
        if self.lean and self.training:
            recomputed: Tensor = checkpoint(self.inner, values, use_reentrant=False)
            return values + recomputed
        added: Tensor = values + self.inner(values)
        return added


def make_model(*, lean: bool = False) -> nn.Module:
    """Return a chain of blocks, which can be cut between any two."""
    blocks = [Block(lean=lean) for _ in range(DEPTH)]
    return nn.Sequential(*blocks, nn.Linear(WIDTH, CLASSES))


def make_data(samples: int) -> TensorDataset:
    """Return points and labels."""
    generator = torch.Generator().manual_seed(1)
    points = torch.randn(samples, WIDTH, generator=generator)
    return TensorDataset(points, points[:, :CLASSES].argmax(1))


def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
    """Return the mean over the batch."""
    points, labels = batch
    return F.cross_entropy(model(points), labels)


def loss_in_bfloat16(model: nn.Module, batch: list[Tensor]) -> Tensor:
    """Compute, and keep for backward, in half as many bytes; weights stay as they are."""
    points, labels = batch
    with torch.autocast(points.device.type, dtype=torch.bfloat16):
        return F.cross_entropy(model(points), labels)


def recipe() -> Recipe:
    """Return the recipe."""
    return Recipe(
        model=make_model,
        data=lambda: make_data(8192),
        loss=loss,
        optimizer=lambda ps: torch.optim.AdamW(ps, lr=1e-3),
        global_batch=8192,
        lanes=2,
    )


def in_bfloat16() -> Recipe:
    """Return the recipe with activations in bfloat16."""
    return replace(recipe(), loss=loss_in_bfloat16)


def with_checkpoints() -> Recipe:
    """Return the recipe with activation checkpoints."""
    return replace(recipe(), model=lambda: make_model(lean=True))
