"""A recipe tried on two samples: whether it runs, and what its parts are. Imports torch with the recipe.

First what every recipe has; then, in a recipe that runs, what it may have besides, which is left out if it fails.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.errors import BadInput
from lockstep.recipe import Loss, Recipe
from lockstep.recipe_file import load

if TYPE_CHECKING:
    from lockstep.data.source import Source

SAMPLES = 2


@dataclass(frozen=True)
class Trial:
    """What a recipe is made of, in words, and what it gave for two samples."""

    model: str
    """Its class and how many parameters it has."""
    data: str
    """Its class and how many samples it has."""
    optimizer: str
    """Its class."""
    loss: float
    """Of two samples, with the first weights."""
    global_batch: int
    """Samples of a step."""
    samples: int | None
    """Of an epoch; None for a stream that does not say."""
    epoch_steps: int | None
    """Batches of an epoch."""
    batchnorm: bool
    """Whether the model has layers that look at a whole batch."""
    random_data: bool
    """Whether the data is other data when it is made again, as it would be in each worker."""


def try_recipe(path: Path) -> Trial:
    """Load the recipe, make everything, and compute the loss of two samples; what it raises is the recipe's."""
    import torch

    from lockstep.data.source import first_samples, open_source

    batchnorm = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)
    recipe = load(str(path))
    torch.manual_seed(recipe.seed)
    model = recipe.model()
    dataset = recipe.dataset()
    source = open_source(dataset, recipe.collate, recipe.global_batch)
    again = open_source(recipe.dataset(), recipe.collate, recipe.global_batch)
    made = recipe.loss(model, first_samples(source, SAMPLES))
    total, weight = made if isinstance(made, tuple) else (made, 1)
    optimizer = recipe.optimizer(model.parameters())
    count = sum(parameter.numel() for parameter in model.parameters())
    whole, rest = divmod(source.samples or 0, recipe.global_batch)
    steps = whole + bool(rest and not (recipe.drop_last or source.drop_last))
    return Trial(
        f"{type(model).__name__}, {count:,} parameters",
        _data_words(source),
        type(optimizer).__name__,
        float(total.detach()) / float(weight),
        recipe.global_batch,
        source.samples,
        steps or None,
        any(isinstance(one, batchnorm) for one in model.modules()),
        _differ(first_samples(source, SAMPLES), first_samples(again, SAMPLES)),
    )


def _data_words(source: Source) -> str:
    samples = "a stream" if source.samples is None else f"{source.samples:,} samples"
    return f"{type(source.dataset).__name__}, {samples}"


@dataclass(frozen=True)
class OptionalTrial:
    """What became of the parts that not every recipe has, by field."""

    words: dict[str, str]
    """What those that work are."""
    failed: dict[str, str]
    """Why the others do not."""
    random_data: bool = False
    """Whether the data for evaluations is other data when it is made again."""


def try_optional(path: Path, fields: Sequence[str]) -> OptionalTrial:
    """Make the schedule and advance it; evaluate two samples. Whatever the user's own code raises is a reason."""
    words, failed, random_data = dict[str, str](), dict[str, str](), False
    try:
        recipe = load(str(path))
    except BadInput as error:
        if not fields:
            raise
        # It was loaded without these parts, and of them an evaluation, the last, brings statements of its own.
        return OptionalTrial({}, {fields[-1]: _last_line(error)})
    for name in fields:
        try:
            if name == "schedule":
                words[name] = _schedule(recipe)
            else:
                words["eval_data"], words[name], random_data = _evaluation(recipe)
        except Exception as error:
            failed[name] = _last_line(error)
    return OptionalTrial(words, failed, random_data)


def _last_line(error: Exception) -> str:
    return "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]


def _schedule(recipe: Recipe) -> str:
    assert recipe.schedule is not None
    optimizer = recipe.optimizer(recipe.model().parameters())
    schedule = recipe.schedule(optimizer)
    optimizer.step()
    schedule.step()
    return type(schedule).__name__.removesuffix("OnceAnEpoch")


def _evaluation(recipe: Recipe) -> tuple[str, str, bool]:
    """Return what the data is, the names of the metrics, and whether the data is random."""
    import torch

    from lockstep.data.source import first_samples, open_source

    assert recipe.evaluate is not None
    source, again = (open_source(recipe.eval_dataset(), recipe.collate) for _ in range(2))
    batch = first_samples(source, SAMPLES)
    with torch.no_grad():
        metrics = recipe.evaluate(recipe.model().eval(), batch)
    for value in metrics.values():
        float(value.total if isinstance(value, Loss) else value)
    return _data_words(source), " and ".join(metrics), _differ(batch, first_samples(again, SAMPLES))


def _differ(first: Any, second: Any) -> bool:
    """Say whether two batches hold other numbers."""
    import torch

    if isinstance(first, torch.Tensor):
        return not torch.equal(first, second)
    if isinstance(first, dict):
        return any(_differ(first[name], second[name]) for name in first)
    if isinstance(first, list | tuple):
        return any(_differ(one, other) for one, other in zip(first, second, strict=True))
    return False
