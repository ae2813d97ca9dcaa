"""The one command that gives a run's digest again, with everything typed that the bits depend on."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from lockstep.report.collect import FinishedRun
from lockstep.settings import Option, option_of
from lockstep.train.spec import RunSpec

SHOWN_DIGITS = 8
"""Of a digest, where the whole of it stands beside."""


def reproduce(run: FinishedRun, folder: Path) -> str:
    """Return the command line, as it is typed in `folder`.

    Where the bits do not depend on the number of workers, neither workers nor strategy are typed: any will do.
    """
    setup, result = run.setup, run.result
    spec = replace(
        setup.spec,
        lanes=setup.plan.lanes,
        seed=setup.recipe.seed,
        global_batch=setup.recipe.global_batch,
        steps=result.steps,
        threads=result.threads,
        device=result.device.partition(":")[0],
    )
    names = [] if result.same_bits_up_to else ["strategy", "workers"]
    return run_command(spec, [*names, *_decide_bits()], folder)


def run_command(spec: RunSpec, names: Collection[str], folder: Path) -> str:
    """Return the command line of a run with these options, as it is typed in `folder`."""
    hints = get_type_hints(RunSpec, include_extras=True)
    arguments = []
    for field in fields(RunSpec):
        option, value = option_of(hints[field.name]), getattr(spec, field.name)
        if option is not None and field.name in names and value is not None:
            arguments += _argument(field.name, option, value)
    return shlex.join(["lockstep", "run", _typed_recipe(spec.recipe, folder), *arguments])


def with_digest(command: str, digest: str) -> str:
    """Return the command and what comes of it, on one line."""
    return f"{command}  ->  {digest[:SHOWN_DIGITS]}"


def _decide_bits() -> list[str]:
    """Return the options that the bits depend on."""
    options = {name: option_of(hint) for name, hint in get_type_hints(RunSpec, include_extras=True).items()}
    return [name for name, option in options.items() if option is not None and option.bits]


def _argument(name: str, option: Option, value: Any) -> list[str]:
    flag = f"--{name.replace('_', '-')}"
    if not isinstance(value, bool):
        return [flag, str(value)]
    if option.off:  # a flag that turns a field off
        return [] if value else [option.off]
    return [flag] if value else []


def _typed_recipe(recipe: str, folder: Path) -> str:
    """Return a recipe as it is typed in a folder: a file below it by its relative path."""
    path, colon, function = recipe.partition(":")
    if not Path(path).is_absolute() or not Path(path).is_relative_to(folder):
        return recipe
    return f"{Path(path).relative_to(folder)}{colon}{function}"
