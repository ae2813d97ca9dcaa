"""Lanes of one sample are looked for before training: a model with BatchNorm may not be able to train on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from lockstep.data.augment import generators_restored
from lockstep.data.source import first_samples
from lockstep.errors import BadInput
from lockstep.lanes.schedule import one_sample_lane
from lockstep.strategies.one_sample import explain_one_sample, is_one_sample_error
from lockstep.torch_compat.modules import BatchNorm

if TYPE_CHECKING:
    from lockstep.data.source import Source
    from lockstep.recipe import Plan, Recipe


def check_one_sample_lanes(recipe: Recipe, source: Source, plan: Plan) -> None:
    """Refuse a recipe whose sizes give a lane one sample that its model cannot train on.

    BatchNorm needs more than one value per channel, which one image has and one vector has not. So where the sizes give
    such a lane, the model is made and run on one sample; any other error is left to the training itself.
    """
    drop_last = recipe.drop_last or source.drop_last
    where = one_sample_lane(plan.samples, recipe.global_batch, plan.lanes, drop_last=drop_last)
    if where is None or where[0] >= plan.steps:
        return
    with generators_restored():
        refused = _refuses_one_sample(recipe, source)
    if refused:
        step, lane = where
        batch = min(recipe.global_batch, (plan.samples or recipe.global_batch) - step * recipe.global_batch)
        raise BadInput(explain_one_sample(lane=lane, step=step, batch=batch, lanes=plan.lanes))


def _refuses_one_sample(recipe: Recipe, source: Source) -> bool:
    torch.manual_seed(recipe.seed)
    try:
        model = recipe.model()
        if not any(isinstance(module, BatchNorm) for module in model.modules()):
            return False
        with torch.no_grad():
            recipe.loss(model.train(), first_samples(source, 1))
    except Exception as error:
        return is_one_sample_error(error)
    return False
