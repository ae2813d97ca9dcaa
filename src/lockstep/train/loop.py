"""The built-in loop: a recipe, a world and a run folder become a result."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from lockstep.errors import NotFinite
from lockstep.train.final_weights import check_weights
from lockstep.train.fingerprints import Fingerprints
from lockstep.train.keeper import Keeper, go_on
from lockstep.train.progress import Progress
from lockstep.train.records import Records
from lockstep.train.result import Ended, leave_result
from lockstep.train.resume import holding
from lockstep.train.schema.rank_jsonl import HeaderLine
from lockstep.train.steps import StepLog
from lockstep.train.trainer import Trainer

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.data.loader import Batch
    from lockstep.mesh import Mesh
    from lockstep.recipe import Plan, Recipe
    from lockstep.strategies.base import How
    from lockstep.train.spec import RunSpec
    from lockstep.world.place import World


def train(spec: RunSpec, world: World, folder: Path, records: Records) -> None:
    """Train, evaluate, and leave this rank's records; rank 0 also leaves the result.

    1. Load and check the recipe; make data, model, strategy; load the checkpoint of a run that goes on.
    2. All ranks wait for each other, so that nobody's start-up enters the measured time.
    3. Steps, one line each.
    4. Evaluate, digest, gather what each rank measured.
    """
    with holding(folder) if world.rank == 0 else contextlib.nullcontext():
        _train(spec, world, folder, records)


def _train(spec: RunSpec, world: World, folder: Path, records: Records) -> None:
    recipe = spec.load()
    dataset = recipe.dataset()
    plan = spec.plan(recipe, dataset)
    trainer = Trainer(
        world,
        recipe.model,
        recipe.optimizer,
        recipe.loss,
        clip=recipe.clip,
        schedule=recipe.schedule,
        settings=spec.filled_in(recipe, plan),
    )
    check_weights(trainer.model)
    records.write(header(trainer.mesh, plan, trainer.strategy.how()))
    resumed = go_on(trainer, folder, recipe.name) if spec.resume else []
    trainer.mesh.everyone.barrier()
    log = StepLog(records, world.device, spec.measure)
    started = time.time()
    label = f"{recipe.name} {spec.strategy}, {world.size} worker{'s' if world.size > 1 else ''}"
    with Progress(plan.steps, label=label, shown=spec.progress and world.rank == 0) as progress:
        source = _all_batches(trainer, recipe, dataset, plan)
        pauses = Fingerprints(folder, trainer.mesh.everyone, plan.steps) if spec.measure else None
        keeper = Keeper(folder, recipe.name, spec.checkpoint_every, plan.steps, records)
        seconds = run_steps(trainer, source, log, progress, pauses, keeper)
    metrics = _evaluate(trainer, recipe, plan)
    why = {"SyncBatchNorm": spec.sync_batchnorm, "inexact sum": not spec.exact}
    ended = Ended(
        plan=plan,
        recipe=recipe,
        model=trainer.model,
        holdings=trainer.strategy.holdings(),
        digest=trainer.digest(),
        metrics=metrics,
        started=started,
        seconds=seconds,
        paused=pauses.seconds if pauses else 0.0,
        depends_on_workers=", ".join(name for name, asked in why.items() if asked),
        how=trainer.strategy.how(),
        checkpoint_seconds=keeper.seconds,
        resumed=resumed,
        most_weights=spec.most_weights,
    )
    leave_result(folder, trainer.mesh, log, ended)


def run_steps(
    trainer: Trainer,
    source: Iterator[Batch],
    log: StepLog,
    progress: Progress,
    pauses: Fingerprints | None,
    keeper: Keeper | None = None,
) -> float:
    """Do every step and note it; return the seconds of all of them, without the pauses and the checkpoints."""
    began = time.perf_counter()
    at, before = time.time(), began
    for batch in source:
        log.records.step = batch.step
        try:
            stats = trainer.step(batch)
        except NotFinite:
            log.write_not_finite(batch.step, batch.epoch)
            raise
        log.write(stats, epoch=batch.epoch, began=at, total=time.perf_counter() - before)
        log.samples += batch.samples
        progress.step(stats.step + 1, stats.loss)
        if pauses is not None:
            pauses.after(stats.step, trainer.strategy.holdings)
        if keeper is not None:
            keeper.after(trainer)
        at, before = time.time(), time.perf_counter()
    trainer.mesh.everyone.barrier()
    return time.perf_counter() - began - sum(each.seconds for each in (pauses, keeper) if each)


def header(mesh: Mesh, plan: Plan, how: How) -> HeaderLine:
    """Return the first line of a rank's records."""
    world = mesh.world
    return HeaderLine(
        rank=world.rank,
        size=world.size,
        replica=mesh.replica,
        stage=mesh.stage,
        host=world.host,
        pid=os.getpid(),
        device=world.device,
        threads=world.threads,
        backend=world.backend,
        lanes=plan.lanes,
        time=time.time(),
        exchange=how.exchange,
        optimizer=how.optimizer,
    )


def _all_batches(trainer: Trainer, recipe: Recipe, dataset: Any, plan: Plan) -> Iterator[Batch]:
    """Yield batches over epochs; a number of steps that was asked for wins over the recipe's epochs."""
    every = (
        trainer.batches(
            dataset,
            global_batch=recipe.global_batch,
            epoch=epoch,
            collate=recipe.collate,
            drop_last=recipe.drop_last,
        )
        for epoch in itertools.count(trainer.epoch)
    )
    return itertools.islice(itertools.chain.from_iterable(every), plan.steps - trainer.steps)


def _evaluate(trainer: Trainer, recipe: Recipe, plan: Plan) -> dict[str, float]:
    if recipe.evaluate is None:
        return {}
    batch = evaluation_batch(recipe, plan)
    return trainer.evaluate(recipe.evaluate, recipe.eval_dataset(), batch=batch, collate=recipe.collate)


def evaluation_batch(recipe: Recipe, plan: Plan) -> int:
    """Return how many samples are evaluated at a time: as many as a lane has."""
    return max(1, recipe.global_batch // plan.lanes)
