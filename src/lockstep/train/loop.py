"""The built-in loop: a recipe, a world and a run folder become a result."""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from lockstep.data.source import count_samples
from lockstep.train import memory
from lockstep.train.progress import Progress
from lockstep.train.records import Records, write_json
from lockstep.train.trainer import Trainer

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.data.loader import Batch
    from lockstep.recipe import Plan, Recipe
    from lockstep.train.spec import RunSpec
    from lockstep.world import World


def train(spec: RunSpec, world: World, folder: Path, records: Records) -> None:
    """Train, evaluate, and leave this rank's records; rank 0 also leaves the result.

    1. Load and check the recipe; make data, model, strategy.
    2. All ranks wait for each other, so that nobody's start-up enters the measured time.
    3. Steps, one line each.
    4. Evaluate, digest, gather what each rank measured.
    """
    started = time.time()
    recipe = spec.load()
    dataset = recipe.dataset()
    plan = spec.plan(recipe, count_samples(dataset))
    trainer = Trainer(
        world,
        recipe.model,
        recipe.optimizer,
        recipe.loss,
        strategy=spec.strategy,
        lanes=plan.lanes,
        seed=recipe.seed,
        workers=spec.workers,
        clip=recipe.clip,
        schedule=recipe.schedule,
        sync_batchnorm=spec.sync_batchnorm,
    )
    records.write(header(world, plan))
    _wait_for_all(world)
    began = time.perf_counter()
    label = f"{recipe.name} {spec.strategy}, {world.size} worker{'s' if world.size > 1 else ''}"
    last: list[float] = []
    times: list[float] = []
    with Progress(plan.steps, label=label, shown=spec.progress and world.rank == 0) as progress:
        source = _all_batches(trainer, recipe, dataset, plan)
        before = time.perf_counter()
        for batch in source:
            records.step = batch.step
            stats = trainer.step(batch)
            now = time.perf_counter()
            times.append(now - before)
            before = now
            last = [stats.loss * stats.weight, stats.weight]
            records.write(
                {
                    "step": stats.step,
                    "epoch": batch.epoch,
                    "loss": stats.loss,
                    "weight": stats.weight,
                    "seconds": {name: round(value, 7) for name, value in stats.seconds.items()},
                    "total": round(times[-1], 7),
                    "memory": memory.now(world.device),
                    "time": time.time(),
                }
            )
            progress.step(stats.step + 1, stats.loss)
    _wait_for_all(world)
    seconds = time.perf_counter() - began
    metrics = _evaluate(trainer, recipe, plan)
    peak, measure = memory.peak(world.device)
    digest = trainer.digest()
    rows = gather(world, [seconds, statistics.median(times), peak, *last])
    end = {"end": "done", "seconds": seconds, "peak_memory": peak, "digest": digest}
    records.write(end)
    if world.rank == 0:
        samples = _samples_seen(plan, recipe)
        write_json(
            folder / "result.json",
            {
                "outcome": "done",
                "digest": digest,
                "depends_on_workers": "SyncBatchNorm" if spec.sync_batchnorm else "",
                "seconds": seconds,
                "step_seconds": rows[0][1],
                "samples_per_second": samples / seconds,
                "start_seconds": time.time() - started - seconds,
                "steps": plan.steps,
                "threads": world.threads,
                "device": world.device,
                "backend": world.backend,
                "peak_memory": [int(row[2]) for row in rows],
                "memory_measure": measure,
                "loss": sum(row[3] for row in rows) / sum(row[4] for row in rows),
                "metrics": metrics,
            },
        )


def header(world: World, plan: Plan) -> dict[str, Any]:
    """Return the first line of a rank's records."""
    return {
        "rank": world.rank,
        "size": world.size,
        "host": world.host,
        "pid": os.getpid(),
        "device": world.device,
        "threads": world.threads,
        "backend": world.backend,
        "lanes": plan.lanes,
        "time": time.time(),
    }


def gather(world: World, numbers: list[float]) -> list[list[float]]:
    """Return every rank's numbers, in rank order; plain numbers only, so nothing is unpickled."""
    if world.size == 1:
        return [numbers]
    mine = torch.tensor(numbers, dtype=torch.float64, device=world.device)
    everyone = [torch.empty_like(mine) for _ in range(world.size)]
    dist.all_gather(everyone, mine)
    return [row.tolist() for row in everyone]


def _all_batches(trainer: Trainer, recipe: Recipe, dataset: Any, plan: Plan) -> Iterator[Batch]:
    """Yield batches over epochs; a number of steps that was asked for wins over the recipe's epochs."""
    epochs = -(-plan.steps // plan.epoch_steps)
    every = (
        trainer.batches(dataset, global_batch=recipe.global_batch, epoch=epoch, collate=recipe.collate)
        for epoch in range(epochs)
    )
    return itertools.islice(itertools.chain.from_iterable(every), plan.steps)


def _evaluate(trainer: Trainer, recipe: Recipe, plan: Plan) -> dict[str, float]:
    if recipe.evaluate is None:
        return {}
    batch = max(1, recipe.global_batch // plan.lanes)
    return trainer.evaluate(recipe.evaluate, recipe.eval_dataset(), batch=batch, collate=recipe.collate)


def _samples_seen(plan: Plan, recipe: Recipe) -> int:
    epochs, rest = divmod(plan.steps, plan.epoch_steps)
    return epochs * plan.samples + min(rest * recipe.global_batch, plan.samples)


def _wait_for_all(world: World) -> None:
    if world.size > 1:
        dist.barrier()
