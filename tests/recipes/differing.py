"""Recipes that are not the same on every rank, as happens with random numbers that nobody seeded."""

from __future__ import annotations

import os
from dataclasses import replace

import tiny  # the folder of a recipe is on the path
import torch
from torch import nn
from torch.utils.data import TensorDataset

from lockstep import Recipe


def data() -> Recipe:
    generator = torch.Generator().manual_seed(os.getpid())
    return replace(tiny.recipe(), data=TensorDataset(torch.randn(96, 8, generator=generator), torch.arange(96) % 4))


def length() -> Recipe:
    return replace(tiny.recipe(), data=lambda: tiny.make_data(96 + int(os.environ.get("RANK", "0"))))


def model() -> Recipe:
    def made() -> nn.Module:
        net = tiny.recipe().model()
        with torch.no_grad():
            next(net.parameters()).add_(float(os.environ.get("RANK", "0")))
        return net

    return replace(tiny.recipe(), model=made)
