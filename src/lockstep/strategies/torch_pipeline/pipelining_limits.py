"""What torch.distributed.pipelining cannot train as this strategy uses it; all of it is refused, most before a start.

one shape   buffers for what passes between stages are laid out once: lanes that differ are refused
tensors     a stage passes a tensor or a tuple of tensors
ties        a weight that two stages use would become two weights
replicas    a stage stands alone: data parallelism would be a wrapper around each stage
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from lockstep.data.augment import generators_restored
from lockstep.data.loader import LaneBatch, Share, batches
from lockstep.errors import BadInput
from lockstep.stages.actions import FILL_DRAIN
from lockstep.stages.cuts import AUTO
from lockstep.stages.survey import Survey

if TYPE_CHECKING:
    from lockstep.recipe import Plan, Recipe
    from lockstep.settings import Settings
    from lockstep.strategies.limits import Asked

WHO = "torch.distributed.pipelining"
Form = Any
"""The shapes of a lane's tensors, as nested tuples."""


def limits(asked: Asked) -> None:
    """Refuse what can be known before any worker starts."""
    check_counts(asked.settings, asked.plan.lanes)
    check_last_batch(asked.recipe, asked.plan)
    if asked.survey is not None:
        check_ties(asked.survey, asked.settings.cut, asked.settings.stage_count)
    share = Share(global_batch=asked.recipe.global_batch, lanes=asked.plan.lanes, seed=asked.recipe.seed)
    with generators_restored():
        batch = next(batches(asked.dataset, share, epoch=0, collate=asked.recipe.collate, prefetch=0), None)
    if batch is not None:
        check_lanes_alike(batch.lanes, form_of_lane(batch.lanes[0].data), batch.step)


def check_counts(settings: Settings, lanes: int) -> None:
    """Refuse several replicas, and fewer lanes than 1F1B needs."""
    stages = settings.stage_count
    if settings.replicas > 1:
        raise BadInput(
            f"strategy torch-pipeline is one replica of {settings.workers} stages, and --stages {stages} gives "
            f"{settings.replicas} replicas: use --stages {settings.workers}, or strategy pipeline"
        )
    if lanes < stages and settings.pipeline_schedule != FILL_DRAIN:
        raise BadInput(
            f"strategy torch-pipeline: {WHO} needs as many lanes as stages for 1f1b, and there are {lanes} lanes for "
            f"{stages} stages: use --lanes {stages} or more, or --pipeline-schedule fill-drain"
        )


def check_last_batch(recipe: Recipe, plan: Plan) -> None:
    """Refuse a run that comes to a short last batch."""
    if plan.samples is None or plan.epoch_steps is None or plan.steps < plan.epoch_steps:
        return
    short = plan.samples % recipe.global_batch
    if short and plan.epoch_steps * recipe.global_batch > plan.samples:
        raise BadInput(
            f"strategy torch-pipeline: {WHO} needs lanes of one shape, and the last batch of an epoch has {short} "
            f"samples, not {recipe.global_batch}: use --drop-last, or a --global-batch that divides {plan.samples}"
        )


def check_ties(survey: Survey, cut: str, stages: int) -> None:
    """Refuse a trained weight that two stages use: after the cut that was typed, or after any cut."""
    if cut != AUTO:
        shared = survey.ownership(survey.cut(cut, stages)).shared(survey.trained)
    else:
        users = {name: [i for i, one in enumerate(survey.facts) if name in one.used] for name in survey.trained}
        spans = {name: layers[-1] - layers[0] for name, layers in users.items() if layers}
        shared = [name for name, span in spans.items() if always_apart(span, len(survey.layers), stages)]
    refuse_shared(shared)


def always_apart(span: int, layers: int, stages: int) -> bool:
    """Say whether every cut into so many stages comes between two layers that are `span` places apart."""
    return stages - 1 > layers - 1 - span


def refuse_shared(shared: Sequence[str]) -> None:
    """Refuse weights that several stages use."""
    if shared:
        raise BadInput(
            f"strategy torch-pipeline: {WHO} has no tied weights, and two stages use "
            f"{shared[0].removeprefix('parameter/')}: use strategy pipeline, or a --cut that keeps its layers together"
        )


def check_lanes_alike(lanes: Sequence[LaneBatch], form: Form, step: int) -> None:
    """Refuse a lane whose tensors have other shapes than the first lane's of the run."""
    for lane in lanes:
        own = form_of_lane(lane.data)
        if own != form or not lane.samples:
            raise BadInput(
                f"strategy torch-pipeline: {WHO} needs lanes of one shape, and lane {lane.lane} of step {step} has "
                f"{_shown(own)}, where {_shown(form)} was expected: pad all samples to one length and leave out short "
                "batches (--drop-last), or use strategy pipeline"
            )


def form_of_lane(data: Any) -> Form:
    """Return the shapes of a batch's tensors."""
    if isinstance(data, Tensor):
        return tuple(data.shape)
    if isinstance(data, Mapping):
        return tuple(form_of_lane(value) for value in data.values())
    if isinstance(data, list | tuple):
        return tuple(form_of_lane(value) for value in data)
    return ()


def passed_tensors(value: Any, where: str) -> tuple[Tensor, ...]:
    """Return the tensors of a value that a stage passes on; refuse what torch does not pass."""
    tensors = value if type(value) is tuple else (value,)
    for one in tensors:
        if not isinstance(one, Tensor):
            raise BadInput(
                f"strategy torch-pipeline: {WHO} passes a tensor or a tuple of tensors between stages, and {where} "
                f"returns a {_kind(value)}: use strategy pipeline"
            )
    return tensors


def _kind(value: Any) -> str:
    if type(value) is not tuple:
        return type(value).__name__
    return f"tuple of {', '.join(type(one).__name__ for one in value)}"


def _shown(form: Form) -> str:
    return str(form[0] if len(form) == 1 else form)
