"""The check before any worker starts: load the recipe, count its steps, make the run folder or find where it stands."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from lockstep.data.source import open_source
from lockstep.errors import BadInput, BadRecipe
from lockstep.registry import PEERS, PeerDescription, StrategyDescription, describe
from lockstep.registry.base import import_object
from lockstep.registry.peers import PREPARED
from lockstep.strategies.limits import Asked, check_limits
from lockstep.train.best_metric import wanted_metric
from lockstep.train.checkpoint_header import Arithmetic
from lockstep.train.evaluate import evaluation_source
from lockstep.train.event_file import check_tensorboard
from lockstep.train.folder_lock import holding
from lockstep.train.machine import check_machine
from lockstep.train.one_sample_lanes import check_one_sample_lanes
from lockstep.train.records import CannotWrite, cannot_write, create_folder
from lockstep.train.resume import check_standing, history, put_aside, read_standing
from lockstep.train.setup import write_setup
from lockstep.train.spec import RunSpec, source_of
from lockstep.train.stage_check import check_model, check_settings_of_stages
from lockstep.train.synchronise import check_equal_lanes, check_sync_batchnorm

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.data.source import Source
    from lockstep.recipe import Plan, Recipe


def preflight(spec: RunSpec, out: Path) -> None:
    """Refuse what cannot run, then make the run folder with its spec in it."""
    description = describe(spec.strategy)
    if (reason := description.unavailable()) is not None:
        raise BadInput(reason)
    description.check_workers(spec.workers)
    if spec.checkpoint_every is not None and spec.checkpoint_every < 1:
        raise BadInput(f"--checkpoint-every {spec.checkpoint_every}: at least 1 step is needed between checkpoints")
    if spec.stall_limit is not None and not spec.stall_limit > 0:
        raise BadInput(f"--stall-limit {spec.stall_limit:g}: expected a number of seconds above 0")
    if spec.tensorboard:
        check_tensorboard()
    check_settings_of_stages(spec)
    try:
        recipe = spec.load()
    except BadInput as error:
        raise BadRecipe(str(error)) from error
    check_evaluation_options(spec, recipe)
    data = recipe.dataset()
    plan = spec.plan(recipe, data)
    device = check_machine(spec)
    source = open_source(data, recipe.collate, recipe.global_batch)
    if isinstance(description, PeerDescription):
        _check_peer(spec, plan, source, drop_last=recipe.drop_last)
        _check_followed_peer(spec, recipe)
    _check_evaluation(recipe, source)
    if spec.sync_batchnorm:
        check_sync_batchnorm(spec.strategy, plan.lanes, spec.workers, recipe.global_batch)
    else:
        check_one_sample_lanes(recipe, source, plan)
    if description.equal_lanes:
        check_equal_lanes(spec.strategy, plan.lanes, spec.workers)
    survey = check_model(spec, recipe, data, plan) if description.staged else None
    if isinstance(description, StrategyDescription):
        check_limits(Asked(spec, device, recipe, data, plan, survey))
    if spec.resume:
        _make_ready(spec, out, recipe, plan)
        return
    _make_folder(spec, out, recipe, plan)


def check_evaluation_options(spec: RunSpec, recipe: Recipe) -> None:
    """Refuse evaluations that cannot be, as far as that is known before the first one."""
    counts = {"--eval-every": (spec.eval_every, "step"), "--patience": (spec.patience, "evaluation")}
    for option, (count, what) in counts.items():
        if count is not None and count < 1:
            raise BadInput(f"{option} {count}: give a number of {what}s, at least 1")
    asked = [option for option, (count, _) in counts.items() if count is not None]
    asked += [] if spec.keep_best is None else [f"--keep-best {spec.keep_best}"]
    if asked and recipe.evaluate is None:
        raise BadInput(
            f"{asked[-1]}: the recipe {recipe.name} has no evaluation. Give it one with Recipe(evaluate=...), a "
            "function of model and batch that returns named numbers, or leave the option out"
        )
    if spec.keep_best is not None:
        wanted_metric(spec.keep_best)
    elif spec.patience is not None:
        raise BadInput("--patience needs the metric to wait for: give --keep-best too, e.g. --keep-best accuracy")


def _make_ready(spec: RunSpec, folder: Path, recipe: Recipe, plan: Plan) -> None:
    """Check that the run can go on, and put aside what the last attempt left."""
    with holding(folder):
        standing = read_standing(folder)
        arithmetic = Arithmetic.of(
            spec.filled_in(recipe, plan),
            recipe=recipe.name,
            global_batch=recipe.global_batch,
            threads=spec.threads or standing.header.arithmetic.threads,
            clip=recipe.clip,
        )
        check_standing(standing, arithmetic, plan, spec.patience)
        try:
            put_aside(folder)
            write_setup(folder, spec, recipe, plan, history(standing, source_of(spec.recipe)))
        except CannotWrite as error:
            raise BadInput(str(error)) from error


def _make_folder(spec: RunSpec, out: Path, recipe: Recipe, plan: Plan) -> None:
    """Make the run folder, with what a peer's ranks cannot make themselves."""
    description = describe(spec.strategy)
    create_folder(out)
    try:
        write_setup(out, spec, recipe, plan)
        if isinstance(description, PeerDescription) and description.prepare:
            _prepare(description, out / PREPARED, recipe, plan)
    except CannotWrite as error:
        shutil.rmtree(out / PREPARED, ignore_errors=True)
        if not any(out.iterdir()):
            out.rmdir()
        raise BadInput(str(error)) from error


def _prepare(description: PeerDescription, folder: Path, recipe: Recipe, plan: Plan) -> None:
    try:
        folder.mkdir(mode=0o700)
        import_object(description.prepare)(folder, recipe, plan)
    except OSError as error:
        raise cannot_write(folder, error) from error


def _check_evaluation(recipe: Recipe, training: Source) -> None:
    """Refuse evaluation data that cannot be used, before the training that would come first."""
    if recipe.evaluate is None:
        return
    if recipe.eval_data is None and training.stream and training.samples is None:
        raise BadInput(
            "Recipe(evaluate=...) has no eval_data, and the training data is a stream that may not end: give "
            "Recipe(eval_data=...)"
        )
    evaluated = training if recipe.eval_data is None else evaluation_source(recipe.eval_dataset(), recipe.collate)
    if evaluated.samples == 0:
        raise BadInput("the evaluation data is empty: Recipe(eval_data=...) has length 0, expected at least 1 sample")


def _check_peer(spec: RunSpec, plan: Plan, source: Source, *, drop_last: bool) -> None:
    """Refuse what a peer has no counterpart of."""
    twins = PEERS.get(spec.strategy).twins
    if twins and spec.recipe not in twins:
        raise BadInput(
            f"strategy {spec.strategy} trains its own twins of the recipes {' and '.join(twins)}, and {spec.recipe} is "
            "another: use one of these; or write the model and the loop in that framework, see `lockstep docs "
            "tensorflow`"
        )
    if plan.lanes % spec.workers:
        raise BadInput(
            f"strategy {spec.strategy} gives every rank as many batches, and lanes={plan.lanes} cannot be cut evenly "
            f"over {spec.workers} workers: use --lanes {plan.lanes - plan.lanes % spec.workers + spec.workers}"
        )
    if spec.sync_batchnorm:
        raise BadInput(f"--sync-batchnorm: strategy {spec.strategy} has no SyncBatchNorm on the CPU; use ddp")
    if spec.checkpoint_every is not None or spec.resume:
        raise BadInput(f"strategy {spec.strategy} writes and reads no checkpoints here: use ddp")
    if source.stream:
        raise BadInput(f"strategy {spec.strategy} shuffles over its ranks, and this data is a stream: use ddp")
    if drop_last or source.drop_last:
        raise BadInput(
            f"strategy {spec.strategy} would drop short batches of a lane, not of all ranks: leave drop_last out, or "
            "use ddp"
        )


def _check_followed_peer(spec: RunSpec, recipe: Recipe) -> None:
    """Refuse to follow a peer's run on the way: its loop is its own."""
    asked = {
        "--eval-every": spec.eval_every is not None,
        "--keep-best": spec.keep_best is not None,
        "--tensorboard": spec.tensorboard,
        "Recipe(on_step=...)": spec.monitored and recipe.on_step is not None,
        "Recipe(on_epoch=...)": spec.monitored and recipe.on_epoch is not None,
    }
    for what in (name for name, given in asked.items() if given):
        raise BadInput(
            f"{what}: strategy {spec.strategy} runs its own loop, and is evaluated only after its last step; use ddp, "
            "or leave it out"
        )
