"""The small recipe with everything that a checkpoint must hold, and ways to break it off or to change it."""

import os
import signal
from dataclasses import replace
from typing import Any

import tiny  # the folder of a recipe is on the path
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.lr_scheduler import MultiStepLR

from lockstep import Recipe


def recipe() -> Recipe:
    return replace(tiny.recipe(), evaluate=None, schedule=lambda optimizer: MultiStepLR(optimizer, [4, 10]), clip=0.5)


def killed() -> Recipe:
    """Rank 1 is gone in the middle of the second epoch."""
    calls = 0

    def deadly(model: nn.Module, batch: list[Tensor]) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 11 and dist.is_initialized() and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return tiny.loss(model, batch)

    return replace(recipe(), loss=deadly)


def writer_killed() -> Recipe:
    """Rank 0 is gone while it writes the second checkpoint: a file and a folder were synchronised for the first."""
    calls, sync = 0, os.fsync

    def deadly(file: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        sync(file)

    os.fsync = deadly  # type: ignore[assignment]
    return recipe()


def wider() -> Recipe:
    return replace(recipe(), model=lambda: nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.Linear(32, 4)))


def large() -> Recipe:
    """A checkpoint of about 260 KB."""
    return replace(recipe(), model=lambda: nn.Sequential(nn.Linear(8, 2048), nn.BatchNorm1d(2048), nn.Linear(2048, 4)))


def more() -> Recipe:
    return replace(recipe(), data=lambda: tiny.make_data(120))


def unclipped() -> Recipe:
    return replace(recipe(), clip=None)
