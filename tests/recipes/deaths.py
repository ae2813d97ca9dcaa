"""The small recipe with a death that a test draws: LOCKSTEP_TEST_DEATH is `RANK model`, `RANK step N` or `RANK end`.

The instant is written to the file LOCKSTEP_TEST_DEATH_TIME.
"""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import tiny  # the folder of a recipe is on the path
import torch.distributed as dist
from torch import Tensor, nn

from lockstep import Recipe

RANK, _, WHEN = os.environ.get("LOCKSTEP_TEST_DEATH", "").partition(" ")


def die(when: str) -> None:
    """End this process by SIGKILL if it is the chosen rank, and this the chosen instant."""
    if when == WHEN and dist.is_initialized() and dist.get_rank() == int(RANK):
        Path(os.environ["LOCKSTEP_TEST_DEATH_TIME"]).write_text(str(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)


def recipe() -> Recipe:
    calls = 0

    def make() -> nn.Module:
        die("model")
        return tiny.make_model()

    def loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
        nonlocal calls
        die(f"step {calls}")
        calls += 1
        return tiny.loss(model, batch)

    def metrics(model: nn.Module, batch: list[Tensor]) -> dict[str, Tensor]:
        if calls >= 16:
            die("end")
        return tiny.metrics(model, batch)

    return replace(tiny.recipe(), model=make, loss=loss, evaluate=metrics)
