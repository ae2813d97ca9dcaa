"""Those who follow a run while it goes on: the recipe's callbacks and TensorBoard, on rank 0.

They get numbers, not the model, and the random generators of the process are restored after each call: so the trained
bits are the same with and without them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lockstep.events import EpochDone, StepDone
from lockstep.train.event_file import EventFile
from lockstep.train.undisturbed import generators_kept

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.recipe import Plan, Recipe
    from lockstep.strategies.base import StepStats
    from lockstep.train.spec import RunSpec
    from lockstep.train.trainer import Trainer

TENSORBOARD = "tensorboard"
"""The folder of event files in a run folder."""


class Followers:
    """Called after each step on rank 0; the other ranks have none."""

    def __init__(self, spec: RunSpec, recipe: Recipe, plan: Plan, folder: Path, trainer: Trainer) -> None:
        self._about: dict[str, Any] = {"folder": folder, "recipe": recipe.name, "settings": asdict(spec)}
        self._plan, self._trainer = plan, trainer
        here = trainer.world.rank == 0
        self._on_step = recipe.on_step if here and spec.monitored else None
        self._on_epoch = recipe.on_epoch if here and spec.monitored else None
        self._file = EventFile(folder / TENSORBOARD) if here and spec.tensorboard else None
        if self._file is not None and trainer.steps:
            self._file.begin_at(trainer.steps)
        self._rates = self._learning_rates()
        self._losses: list[float] = []
        self._times: list[float] = []
        self.seconds = 0.0

    def after(self, stats: StepStats, total: float, metrics: dict[str, float], *, last: bool) -> None:
        """Tell everyone of a step that took so long in total, and of the end of an epoch."""
        if self._on_step is None and self._on_epoch is None and self._file is None:
            return
        began = time.perf_counter()
        about = {**self._about, "metrics": metrics, "last": last}
        rates, self._rates = self._rates, self._learning_rates()
        step = StepDone(
            **about,
            step=stats.step,
            steps=self._plan.steps,
            epoch=self._trainer.epoch,
            loss=stats.known_loss,
            learning_rates=rates,
            seconds=total,
        )
        if self._file is not None:
            self._file.add(stats.step, event_values(step))
        self._call("on_step", self._on_step, step)
        self._losses.append(stats.known_loss)
        self._times.append(total)
        if self._plan.epoch_steps is not None and self._trainer.steps % self._plan.epoch_steps == 0:
            self._call("on_epoch", self._on_epoch, self._epoch(about))
            self._losses, self._times = [], []
        self.seconds += time.perf_counter() - began

    def close(self) -> None:
        """Write what was not written yet."""
        if self._file is not None:
            self._file.close()

    def _epoch(self, about: dict[str, Any]) -> EpochDone:
        return EpochDone(
            **about,
            epoch=self._trainer.epoch,
            steps=self._trainer.steps,
            loss=sum(self._losses) / len(self._losses),
            seconds=sum(self._times),
        )

    def _call(self, name: str, callback: Callable[[Any], None] | None, event: StepDone | EpochDone) -> None:
        if callback is None:
            return
        try:
            with generators_kept(self._trainer.world.device):
                callback(event)
        except Exception as error:
            error.add_note(f"in Recipe({name}=...), after {self._trainer.steps} steps")
            raise

    def _learning_rates(self) -> tuple[float, ...]:
        groups = self._trainer.strategy.optimizer.param_groups
        return tuple(float(group["lr"]) for group in groups if "lr" in group)


def event_values(step: StepDone) -> dict[str, float]:
    """Return what TensorBoard shows of a step, under the names that a report gives them."""
    rates = step.learning_rates
    named = {"learning_rate" if len(rates) == 1 else f"learning_rate/{i}": rate for i, rate in enumerate(rates)}
    metrics = {f"evaluation/{name}": value for name, value in step.metrics.items()}
    return {"loss": step.loss, "step_seconds/rank_0": step.seconds, **named, **metrics}
