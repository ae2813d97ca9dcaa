"""A recipe tried on two samples: whether it runs, and what its parts are. Imports torch with the recipe."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.recipe import load

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
    random_data: bool
    """Whether the data is other data when it is made again, as it would be in each worker."""


def try_recipe(path: Path) -> Trial:
    """Load the recipe, make everything, and compute the loss of two samples; what it raises is the recipe's."""
    import torch

    from lockstep.data.source import first_samples, open_source

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
    samples = "a stream" if source.samples is None else f"{source.samples:,} samples"
    return Trial(
        f"{type(model).__name__}, {count:,} parameters",
        f"{type(source.dataset).__name__}, {samples}",
        type(optimizer).__name__,
        float(total.detach()) / float(weight),
        recipe.global_batch,
        _differ(first_samples(source, SAMPLES), first_samples(again, SAMPLES)),
    )


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
