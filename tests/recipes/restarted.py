"""The small recipe with what makes a job start again: a signal or a death, once, or a sample that always fails."""

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType

import tiny  # the folder of a recipe is on the path
import torch
import torch.distributed as dist
from torch import Tensor, nn

from lockstep import Recipe

ONCE = os.environ.get("LOCKSTEP_TEST_ONCE", "")
"""A file that is made when it has happened."""


def at_call(number: int, act: Callable[[], None]) -> Recipe:
    """Do something at one call of the loss in the last rank, if it was not done before."""
    calls = 0

    def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
        nonlocal calls
        calls += 1
        last = not dist.is_initialized() or dist.get_rank() == dist.get_world_size() - 1
        if calls == number and last and ONCE and not Path(ONCE).exists():
            Path(ONCE).touch()
            act()
        return tiny.loss(model, batch)

    return replace(tiny.recipe(), loss=loss)


def recipe() -> Recipe:
    return tiny.recipe()


def told() -> Recipe:
    """The last rank is told to stop, as Slurm does it before the time limit."""
    return at_call(6, lambda: os.kill(os.getpid(), signal.SIGUSR2))


def killed() -> Recipe:
    return at_call(11, lambda: os.kill(os.getpid(), signal.SIGKILL))


def cursed() -> Recipe:
    """A sample that fails whenever it comes."""
    bad = tiny.make_data()[37][0]

    def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
        if any(torch.equal(row, bad) for row in batch[0]):
            raise ValueError("sample 37 is cursed")
        return tiny.loss(model, batch)

    return replace(tiny.recipe(), loss=loss)


def slow() -> Recipe:
    """Steps so long that something can be done meanwhile, until the file is there."""

    def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
        if not (ONCE and Path(ONCE).exists()):
            time.sleep(0.5)
        return tiny.loss(model, batch)

    return replace(tiny.recipe(), loss=loss)


def limited() -> Recipe:
    """The last rank waits in the middle of a step, once, until the signal before the time limit has come."""
    return at_call(6, wait_for_signal)


def wait_for_signal() -> None:
    noted, before = threading.Event(), signal.getsignal(signal.SIGUSR2)
    assert callable(before), "nobody waits for the signal"

    def note(number: int, frame: FrameType | None) -> None:
        before(number, frame)
        noted.set()

    signal.signal(signal.SIGUSR2, note)
    assert noted.wait(170), "no signal came"
