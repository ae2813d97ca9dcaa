"""One rank of `lockstep bench measure`: the built-in loop with and without measuring, in turn, in one process."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import lockstep
from lockstep.comm.group import Group
from lockstep.data.loader import Batch
from lockstep.recipe import Recipe, load
from lockstep.train.loop import run_steps
from lockstep.train.progress import Progress
from lockstep.train.records import Records
from lockstep.train.result import gather
from lockstep.train.steps import StepLog

STEPS_PER_SAMPLE, WARMUP = 4, 3


class Side:
    """One trainer, and the loop around it."""

    def __init__(self, world: lockstep.World, strategy: str, folder: Path, *, measure: bool) -> None:
        recipe: Recipe = load("mlp")
        self._trainer = lockstep.Trainer(
            world, recipe.model, recipe.optimizer, recipe.loss, strategy=strategy, lanes=2, measure=measure
        )
        source = self._trainer.batches(recipe.dataset(), global_batch=recipe.global_batch)
        self._batch: Batch = next(source)
        self._log = StepLog(Records(folder, world.rank), world.device, measure)
        self._step = 0

    def seconds(self) -> float:
        """Return the seconds of a step, from a few of them with everything that the loop does around them."""
        numbers = range(self._step, self._step + STEPS_PER_SAMPLE)
        self._step = numbers.stop
        source = iter([replace(self._batch, step=number) for number in numbers])
        with Progress(len(numbers), label="", shown=False) as progress:
            return run_steps(self._trainer, source, self._log, progress, None) / STEPS_PER_SAMPLE


def main() -> None:
    """Measure, and print the slowest rank's seconds of every sample on rank 0."""
    plan = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    rank, workers = plan["rank"], plan["workers"]
    if workers > 1:
        store, limit = f"file://{plan['folder']}/store", timedelta(seconds=300)
        dist.init_process_group(plan["backend"], init_method=store, rank=rank, world_size=workers, timeout=limit)
    here = {"local_rank": rank, "local_size": workers, "node": 0, "nodes": 1, "host": "here", "device": "cpu"}
    world = lockstep.World(rank=rank, size=workers, threads=1, backend=plan["backend"], launcher="bench", **here)
    sides = {}
    for name in ("measured", "plain"):
        folder = Path(plan["folder"]) / name
        folder.mkdir(exist_ok=True)
        sides[name] = Side(world, plan["strategy"], folder, measure=name == "measured")
    found: dict[str, list[float]] = {name: [] for name in sides}
    for repeat in range(WARMUP + plan["repeats"]):
        # Who goes first changes, so that neither always finds the other's caches.
        for name in sorted(sides, reverse=bool(repeat % 2)):
            seconds = sides[name].seconds()
            if repeat >= WARMUP:
                found[name].append(seconds)
    slowest = {
        name: [max(ranks) for ranks in zip(*gather(Group.everyone(), times), strict=True)]
        for name, times in found.items()
    }
    if rank == 0:
        sys.stdout.write(json.dumps(slowest))
    if workers > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
