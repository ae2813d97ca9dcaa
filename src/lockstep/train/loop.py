"""The built-in loop: a recipe, a world and a run folder become a result."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lockstep.errors import NotFinite
from lockstep.torch_compat.startup import drop_empty_compiler_cache
from lockstep.train import determinism
from lockstep.train.between import Between
from lockstep.train.evaluations import Evaluations
from lockstep.train.final_weights import check_weights
from lockstep.train.fingerprints import Fingerprints
from lockstep.train.folder_lock import holding
from lockstep.train.followers import Followers
from lockstep.train.keeper import Keeper, go_on
from lockstep.train.metric_watch import MetricWatch
from lockstep.train.progress import Progress
from lockstep.train.records import Records
from lockstep.train.result import Ended, leave_result
from lockstep.train.same_bits import bits_hold_for, depends_on_workers, same_bits_up_to
from lockstep.train.schema.rank_jsonl import HeaderLine
from lockstep.train.stack_dump import StackDump
from lockstep.train.stage_check import first_lane
from lockstep.train.steps import StepLog
from lockstep.train.stop_signal import Stopped, StopSignal, stopped_text
from lockstep.train.trainer import Trainer
from lockstep.train.usage_sampler import UsageSampler
from lockstep.world.resources import idle_cpus, job_number, own_cpus, usable_cpus

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.data.loader import Batch
    from lockstep.mesh import Mesh
    from lockstep.recipe import Plan, Recipe
    from lockstep.strategies.base import How
    from lockstep.train.spec import RunSpec
    from lockstep.world.place import World


def train(spec: RunSpec, world: World, folder: Path, records: Records, stop: StopSignal | None = None) -> None:
    """Train, evaluating on the way, and leave this rank's records; rank 0 also leaves the result.

    With `stop`, the same on all ranks, a signal ends it between two steps, with a checkpoint, by `Stopped`.

    1. Load and check the recipe; make data, model, strategy; load the checkpoint of a run that goes on.
    2. All ranks wait for each other, so that nobody's start-up enters the measured time.
    3. Steps, one line each; between them evaluations, fingerprints, checkpoints, see between.py.
    4. Digest, gather what each rank measured.
    """
    with holding(folder) if world.rank == 0 else contextlib.nullcontext():
        _train(spec, world, folder, records, stop)


def _train(spec: RunSpec, world: World, folder: Path, records: Records, stop: StopSignal | None) -> None:
    determinism.refuse_silent_autocast()
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
        layers=recipe.stages,
        example=lambda: first_lane(recipe, dataset, plan),
        settings=spec.filled_in(recipe, plan),
    )
    drop_empty_compiler_cache()  # importing torch's optimizers has made it
    check_weights(trainer.model)
    records.write(header(trainer.mesh, plan, trainer.strategy.how()))
    resumed = go_on(trainer, folder, recipe.name) if spec.resume else []
    trainer.check_data(dataset, global_batch=recipe.global_batch)
    shown = spec.progress and world.rank == 0
    label = f"{recipe.name} {spec.strategy}, {world.size} worker{'s' if world.size > 1 else ''}"
    progress = Progress(plan.steps, label=label, shown=shown, first=trainer.steps)
    between = _between(spec, recipe, plan, trainer, progress, records, stop)
    trainer.mesh.everyone.barrier()
    log = StepLog(records, world.device, spec.measure)
    started = time.time()
    if shown:
        _announce(spec, world, recipe, plan)
    batches = _all_batches(trainer, recipe, dataset, plan)
    with (
        progress,
        contextlib.closing(between.followers),
        StackDump(folder, world.rank, spec.stall_limit) as stack,
        UsageSampler(records, world.device) if spec.measure else contextlib.nullcontext(),
    ):
        seconds = run_steps(trainer, batches, log, progress, between, stack)
    if stop is not None and stop.agreed:
        raise Stopped(stopped_text(folder, trainer.steps))
    ended = Ended(
        plan=replace(plan, steps=trainer.steps),
        recipe=recipe,
        model=trainer.model,
        holdings=trainer.strategy.holdings(),
        digest=trainer.digest(),
        metrics=between.evaluations.metrics,
        started=started,
        seconds=seconds,
        paused=between.fingerprints.seconds if between.fingerprints else 0.0,
        depends_on_workers=depends_on_workers(spec),
        same_bits_up_to=same_bits_up_to(spec, plan.lanes),
        evaluation_seconds=between.evaluations.seconds,
        callback_seconds=between.followers.seconds,
        how=trainer.strategy.how(),
        checkpoint_seconds=between.keeper.seconds + between.watch.seconds,
        best=trainer.best,
        stopped=between.watch.stopped,
        resumed=resumed,
        most_weights=spec.most_weights,
    )
    leave_result(folder, trainer.mesh, log, ended)


def _between(
    spec: RunSpec,
    recipe: Recipe,
    plan: Plan,
    trainer: Trainer,
    progress: Progress,
    records: Records,
    stop: StopSignal | None,
) -> Between:
    """Make what works between the steps; refuse a metric that there is not, before hours of training.

    And an evaluation that cannot be done on a model that is cut.
    """
    folder, watch = records.path.parent, MetricWatch(spec, records.path.parent, recipe.name, trainer)
    evaluations = Evaluations(spec, recipe, plan, records)
    if trainer.best is not None:
        watch.check(trainer, evaluations.names(trainer))
    elif trainer.mesh.stages > 1 and recipe.evaluate is not None:
        evaluations.names(trainer)
    return Between(
        trainer=trainer,
        steps=plan.steps,
        progress=progress,
        evaluations=evaluations,
        watch=watch,
        fingerprints=Fingerprints(folder, trainer.mesh.everyone) if spec.measure else None,
        keeper=Keeper(folder, recipe.name, spec.checkpoint_every, records),
        followers=Followers(spec, recipe, plan, folder, trainer),
        stop=stop,
    )


def _announce(spec: RunSpec, world: World, recipe: Recipe, plan: Plan) -> None:
    """Say for how many workers the bits hold, and which CPUs are idle, while there is still time to change it."""
    lines = [bits_hold_for(spec, lanes=plan.lanes, global_batch=recipe.global_batch)]
    lines.append(determinism.described_for(spec, world))
    if world.device == "cpu":
        local_size = spec.workers if world.size == 1 else world.local_size  # `dp` has its workers in one process
        lines.append(idle_cpus(world.threads, usable_cpus(), local_size))
    for line in filter(None, lines):
        print(f"lockstep: {line}", file=sys.stderr, flush=True)  # noqa: T201


def run_steps(
    trainer: Trainer,
    source: Iterator[Batch],
    log: StepLog,
    progress: Progress,
    between: Between | None,
    stack: StackDump | None = None,
) -> float:
    """Do every step and note it; return the seconds of all of them, without what is done between them."""
    began = time.perf_counter()
    at, before = time.time(), began
    for batch in source:
        log.records.step = batch.step
        try:
            stats = trainer.step(batch)
        except NotFinite:
            log.write_not_finite(batch.step, batch.epoch)
            raise
        total = time.perf_counter() - before
        log.write(stats, epoch=batch.epoch, began=at, total=total)
        log.samples += batch.samples
        progress.step(stats.step + 1, stats.known_loss)
        if stack is not None:
            stack.moved(log.totals)
        if between is not None and not between.after(stats, total):
            break
        at, before = time.time(), time.perf_counter()
    trainer.mesh.everyone.barrier()
    return time.perf_counter() - began - (between.seconds if between is not None else 0.0)


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
        cut=how.cut,
        shards=how.shards,
        cpus=own_cpus(os.environ, world.local_size),
        job=job_number(os.environ),
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
