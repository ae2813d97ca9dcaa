"""What can be said of a cut before any worker starts: the model is made and one lane is run, in this process."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from lockstep.byte_sizes import read_bytes
from lockstep.data.source import fetch, open_source
from lockstep.errors import BadInput, LockstepError
from lockstep.lanes.rng import seed_lane
from lockstep.lanes.schedule import check_stages
from lockstep.registry import STRATEGIES, describe
from lockstep.stages.actions import ZERO_BUBBLE, bubble, check_order, draw, lane_order
from lockstep.stages.cuts import AUTO
from lockstep.stages.survey import Survey
from lockstep.strategies.base import as_sum
from lockstep.strategies.optimizer_memory import STAGE_MEMORY, stage_memory
from lockstep.train.compiler_import import delay_compiler
from lockstep.train.evaluations import evaluation_batch
from lockstep.train.model_check import check_batchnorm, check_initialised

if TYPE_CHECKING:
    from lockstep.recipe import Plan, Recipe
    from lockstep.train.spec import RunSpec


Called = TypeVar("Called")


def check_settings_of_stages(spec: RunSpec) -> None:
    """Refuse numbers of stages that do not fit the workers, and stages for a strategy that has none."""
    description = describe(spec.strategy)
    if description.staged:
        check_stages(spec.workers, spec.stage_count)
        check_order(spec.pipeline_schedule)
        if spec.stage_memory is not None:
            read_bytes(spec.stage_memory, STAGE_MEMORY)
        if spec.stage_count < 2:
            raise BadInput(
                f"--stages {spec.stage_count}: strategy {spec.strategy} cuts the model into at least 2 stages; for one "
                "stage use ddp"
            )
        if spec.sync_batchnorm:
            raise BadInput(f"--sync-batchnorm: strategy {spec.strategy} cuts the model; use ddp")
    elif spec.stages not in (None, 1) or spec.cut != AUTO or spec.stage_memory is not None:
        cutting = " or ".join(one.name for one in STRATEGIES.all() if one.staged and one.exact)
        options = f"--stages, --cut and {STAGE_MEMORY}"
        raise BadInput(f"{options}: strategy {spec.strategy} does not cut the model; use {cutting}")


def check_model(spec: RunSpec, recipe: Recipe, dataset: Any, plan: Plan) -> Survey:
    """Refuse a model that cannot be cut as asked for; return what its layers are."""
    delay_compiler()
    torch.manual_seed(recipe.seed)
    model = _of_the_recipe(recipe.model, f"strategy {spec.strategy}: Recipe(model=...) could not be called")
    check_initialised(model)
    check_batchnorm(model, device="cpu", workers=spec.workers, exact=True)

    def example(one: nn.Module) -> Tensor:
        seed_lane(recipe.seed, 0, 0, "cpu")
        return as_sum(recipe.loss(one, first_lane(recipe, dataset, plan)), 1).total

    filled = spec.filled_in(recipe, plan)
    order = lane_order(spec.strategy, spec.pipeline_schedule)
    memory = _of_the_recipe(
        lambda: stage_memory(recipe.optimizer, model, filled, lanes=plan.lanes, order=order),
        f"strategy {spec.strategy}: Recipe(optimizer=...) could not be called",
    )
    survey = _of_the_recipe(
        lambda: Survey.of(model, recipe.stages, example, spec.stage_count, memory),
        f"strategy {spec.strategy}: a lane could not be run layer by layer. Of Recipe(stages=...) the first layer gets "
        "what model(...) is called with, each other one what the layer before returned",
    )
    if memory.limit is not None:
        survey.measure(runs=0)
    survey.ownership(survey.cut(spec.cut, spec.stage_count))
    return survey


def _of_the_recipe(call: Callable[[], Called], what: str) -> Called:
    """Call what runs the user's own code; whatever that raises is a refusal with the user's own lines."""
    try:
        return call()
    except LockstepError:
        raise
    except Exception as error:
        raise BadInput(f"{what}:\n{own_frames(error)}") from error


def own_frames(error: Exception) -> str:
    """Return what was raised, with the lines that led to it but for those of Lockstep and torch."""
    libraries = (str(Path(__file__).parents[1]), str(Path(torch.__file__).parent))
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(libraries)]
    return "".join([*traceback.format_list(own), *traceback.format_exception_only(error)]).rstrip()


def schedule_text(spec: RunSpec, plan: Plan) -> str:
    """Return the drawing of what `--show-schedule` shows."""
    if not describe(spec.strategy).staged:
        raise BadInput(f"--show-schedule: strategy {spec.strategy} does not cut the model; use pipeline or layers")
    order = lane_order(spec.strategy, spec.pipeline_schedule)
    lanes = -(-plan.lanes // spec.replicas)
    share = bubble(order, spec.stage_count, lanes)
    head = (
        f"{spec.strategy}, {spec.stage_count} stages, {lanes} lanes a replica, {order}: a stage has nothing to do for "
        f"{share:.0%} of a step, if all take equally long. 3 is the forward of lane 3, 3' its backward"
    )
    if order == ZERO_BUBBLE:
        head += ', 3" the half of it that is for the weights'
    head += "."
    return f"{head}\n\n{draw(order, spec.stage_count, lanes)}"


def first_lane(recipe: Recipe, dataset: Any, plan: Plan) -> Any:
    """Return the first samples as a batch of one lane."""
    source = open_source(dataset, recipe.collate)
    samples = evaluation_batch(recipe, plan)
    # a stream is read from its beginning again when it is trained on
    data = [one for one, _ in zip(source.dataset, range(samples), strict=False)] if source.stream else source.dataset
    return fetch(data, list(range(samples)), source.collate)
