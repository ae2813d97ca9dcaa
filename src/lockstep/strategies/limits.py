"""What a strategy cannot train, said before any worker starts: a function of what was asked, named by its description.

It is called with `Asked`, and raises BadInput: what was asked, what the strategy needs, what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from lockstep.registry import STRATEGIES
from lockstep.registry.base import import_object

if TYPE_CHECKING:
    from lockstep.recipe import Plan, Recipe
    from lockstep.settings import Settings
    from lockstep.stages.survey import Survey


class Asked(NamedTuple):
    """One run as it was asked for."""

    settings: Settings
    """Strategy, workers, stages, ...; of a run from the command line its whole spec."""
    device: str | None
    """What the first worker computes on: `cpu`, `cuda:0`, ...; None where workers run on hosts that cannot be seen."""
    recipe: Recipe
    """What is trained."""
    dataset: Any
    """The training data."""
    plan: Plan
    """Its lanes and steps."""
    survey: Survey | None
    """The model's layers, if the strategy cuts the model."""


def check_limits(asked: Asked) -> None:
    """Refuse what the strategy cannot train."""
    path = STRATEGIES.get(asked.settings.strategy).limits
    if path:
        import_object(path)(asked)
