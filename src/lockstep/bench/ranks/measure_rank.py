"""One rank of `lockstep bench measure`: the built-in loop with and without measuring, in turn, in one process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import lockstep
from lockstep.bench.ranks.rank import THREADS, join, serve, world
from lockstep.comm.group import Group
from lockstep.data.loader import Batch
from lockstep.recipe import Recipe
from lockstep.recipe_file import load
from lockstep.train.loop import run_steps
from lockstep.train.progress import Progress
from lockstep.train.records import Records
from lockstep.train.result import gather
from lockstep.train.steps import StepLog

STEPS_PER_SAMPLE = 4
LANES = 2
"""One per worker of the strategies that have two."""


class TimedLoop:
    """One trainer, and the loop around it."""

    def __init__(self, place: lockstep.World, strategy: str, folder: Path, *, measure: bool) -> None:
        recipe: Recipe = load("mlp")
        self._trainer = lockstep.Trainer(
            place, recipe.model, recipe.optimizer, recipe.loss, strategy=strategy, lanes=LANES, measure=measure
        )
        source = self._trainer.batches(recipe.dataset(), global_batch=recipe.global_batch)
        self._batch: Batch = next(source)
        self._log = StepLog(Records(folder, place.rank), place.device, measure)
        self._step = 0

    def seconds(self) -> float:
        """Return the seconds of a step, from a few of them with everything that the loop does around them."""
        numbers = range(self._step, self._step + STEPS_PER_SAMPLE)
        self._step = numbers.stop
        source = iter([replace(self._batch, step=number) for number in numbers])
        with Progress(len(numbers), label="", shown=False) as progress:
            return run_steps(self._trainer, source, self._log, progress, None) / STEPS_PER_SAMPLE


def measure(plan: dict[str, Any]) -> dict[str, list[float]]:
    """Return the slowest rank's seconds of every sample, of both sides."""
    torch.set_num_threads(THREADS)
    if plan["workers"] > 1:
        join(plan, plan["backend"])
    place = world(plan, plan["backend"])
    sides = {}
    for name in ("measured", "plain"):
        folder = Path(plan["folder"]) / name
        folder.mkdir(exist_ok=True)
        sides[name] = TimedLoop(place, plan["strategy"], folder, measure=name == "measured")
    samples: dict[str, list[float]] = {name: [] for name in sides}
    for repeat in range(-plan["warm_up"], plan["repeats"]):
        # Who goes first changes, so that neither always finds the other's caches.
        for name in sorted(sides, reverse=bool(repeat % 2)):
            seconds = sides[name].seconds()
            if repeat >= 0:
                samples[name].append(seconds)
    by_sample = {name: zip(*gather(Group.everyone(), times), strict=True) for name, times in samples.items()}
    return {name: [max(ranks) for ranks in rows] for name, rows in by_sample.items()}


if __name__ == "__main__":
    serve(measure)
