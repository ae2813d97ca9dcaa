"""Checkpoints, for `trainer.load`."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.nn import functional as F

from lockstep import Trainer, World
from lockstep.errors import BadInput
from tests.fuzz.kind import OneFile
from tests.fuzz.mutators import change_bytes, change_tree
from tests.unit.tensor_files import sealed, with_content, with_header

FORGERS = (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError, RecursionError)
"""What may go wrong while a checkpoint is forged: then its bytes are changed instead."""


def forge(data: bytes, chance: random.Random) -> bytes:
    """Change a checkpoint: bytes as they are, or header or content with a hash that is right again."""
    what = chance.random()
    try:
        if what < 0.2:
            return sealed(change_bytes(data, chance))
        if what < 0.5:
            return with_header(lambda header: change_tree(header, chance))(data)
        if what < 0.9:
            return with_content(lambda content: change_tree(content, chance))(data)
    except FORGERS:
        pass  # not even the forger can read it
    return change_bytes(data, chance)


def _net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))


def _loss(model: nn.Module, batch: list[Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def _schedule(optimizer: optim.Optimizer) -> optim.lr_scheduler.LRScheduler:
    return optim.lr_scheduler.MultiStepLR(optimizer, [2, 5])


def make_trainer(strategy: str = "single") -> Trainer:
    """Return a small trainer."""
    torch.set_num_threads(1)
    world = World.alone(threads=1)
    options: dict[str, Any] = {"strategy": strategy, "workers": 2 if strategy == "dp" else 1, "lanes": 2}
    return Trainer(world, _net, partial(optim.AdamW, lr=0.1), _loss, schedule=_schedule, **options)


def save_checkpoint(path: Path) -> None:
    """Write a checkpoint after two steps."""
    trainer = make_trainer()
    data = [(torch.ones(3) * number, number % 2) for number in range(16)]
    for batch in trainer.batches(data, global_batch=8):
        trainer.step(batch)
    trainer.save(path)


class Checkpoint(OneFile):
    """`trainer.load`: what is refused changes nothing."""

    name = "checkpoint"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "one.safetensors"
        save_checkpoint(self.path)
        self.trainers = {strategy: make_trainer(strategy) for strategy in ("single", "dp")}

    def read(self, chance: random.Random) -> None:
        strategy = chance.choice(list(self.trainers))
        self.change(self.path, chance, partial(forge, chance=chance), partial(self.load, strategy))

    def load(self, strategy: str) -> None:
        """Load it, and compare the trainer after a refusal with the one before."""
        trainer = self.trainers[strategy]
        before = everything(trainer)
        try:
            trainer.load(self.path)
        except BadInput:
            assert everything(trainer) == before, "a refused load has changed something"
            raise
        self.trainers[strategy] = make_trainer(strategy)


def everything(trainer: Trainer) -> tuple[Any, ...]:
    """Return all that a load could change."""
    groups = [
        {key: str(value) for key, value in group.items() if key != "params"} for group in trainer.optimizer.param_groups
    ]
    schedule = trainer.strategy.tuned()[0].schedule
    state = "" if schedule is None else str(schedule.state_dict())
    return trainer.digest(), trainer.steps, trainer.epoch, trainer.epoch_step, groups, state
