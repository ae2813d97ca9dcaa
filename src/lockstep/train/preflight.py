"""The check before any worker starts: load the recipe, count its steps, make the run folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.data.source import count_samples
from lockstep.errors import BadInput
from lockstep.strategies import check_name
from lockstep.train.records import CannotWrite, create_folder
from lockstep.train.spec import RunSpec, write_spec

if TYPE_CHECKING:
    from pathlib import Path


def preflight(spec: RunSpec, out: Path) -> None:
    """Refuse what cannot run, then make the run folder with its order in it."""
    check_name(spec.strategy)
    recipe = spec.load()
    plan = spec.plan(recipe, count_samples(recipe.dataset()))
    create_folder(out)
    try:
        write_spec(out, spec, recipe, plan)
    except CannotWrite as error:
        if not any(out.iterdir()):
            out.rmdir()
        raise BadInput(str(error)) from error
