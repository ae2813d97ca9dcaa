"""Looking at a model between two steps without a trace: the training goes on with the same state, to the last bit."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import torch
from torch import nn

from lockstep.data.augment import generators_restored
from lockstep.seeding import derive


@contextmanager
def undisturbed(model: nn.Module, device: str) -> Iterator[None]:
    """Restore the buffers, the mode of every module and the random generators of the process afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    with generators_kept(device):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)
            for module, mode in modes:
                module.training = mode


@contextmanager
def generators_kept(device: str) -> Iterator[None]:
    """Restore the random generators of the process afterwards, that of its device too."""
    with generators_restored(), _device_generator_restored(torch.device(device)):
        yield


def seed_evaluation(chunk: int) -> None:
    """Seed the generators of the process for one chunk of an evaluation: the same on any rank, after any step."""
    seed = derive("evaluation", chunk)
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def _device_generator_restored(place: torch.device) -> AbstractContextManager[None]:
    if place.type == "cpu":
        return contextlib.nullcontext()
    return torch.random.fork_rng([place.index or 0], device_type=place.type)
