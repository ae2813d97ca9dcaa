"""`lockstep init`: write a first recipe. Nothing here imports torch; the trial of what was written does."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lockstep.errors import BadInput, LockstepError

if TYPE_CHECKING:
    from lockstep.first_recipe.recipe_parts import RecipeParts
    from lockstep.first_recipe.training_script import TrainingScript
    from lockstep.first_recipe.trial import Trial
    from lockstep.first_recipe.writing import DataFacts

EMPTY = "recipe.py"


def init(
    script: Annotated[
        Path | None, typer.Argument(help="A training script of yours, to take model, data and loss from.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="File to make.", show_default=f"{EMPTY}, or SCRIPT_recipe.py beside the script")
    ] = None,
) -> None:
    """Write a commented recipe: a small one that runs, or that of a training script of yours."""
    read = None if script is None else _read(script)
    target = out or (Path(EMPTY) if script is None else script.with_name(f"{script.stem}_recipe.py"))
    if target.suffix != ".py":
        raise BadInput(f"--out {target}: a recipe is a file whose name ends in .py")
    if target.exists():
        raise BadInput(f"{target} is there already and is not overwritten: give another name with --out FILE.py")
    if not target.absolute().parent.is_dir():
        raise BadInput(f"--out {target}: there is no folder {target.parent}")
    if script is None or read is None:
        from lockstep.first_recipe.writing import empty_recipe

        _write(target, empty_recipe(target))
        typer.echo(f"{target}: a small recipe that runs. Put your model, data and loss in, then type:")
        typer.echo(f"    lockstep compare {target}")
        return
    _from_script(script, read, target)


def _from_script(script: Path, read: TrainingScript, target: Path) -> None:
    from lockstep.first_recipe.writing import FUNCTIONS, DataFacts, lanes_of, recipe_of

    parts = read.parts()
    text = recipe_of(read, script, parts)
    if len(parts.missing) == len(FUNCTIONS):
        reasons = "; ".join(sorted({f"{reason}" for reason in parts.missing.values()}))
        raise BadInput(
            f"{script} has nothing that a recipe could be made of: {reasons}. `lockstep init` alone writes one "
            "to fill in"
        )
    _write(target, text)
    typer.echo(f"{target}: the recipe of {script}" + (" (a copy: an import of it would train)" if read.copied else ""))
    if parts.missing:
        for name, reason in parts.missing.items():
            typer.echo(f"    {name:<10} not found: {reason}. Write {FUNCTIONS[name][0]} in {target} yourself")
        for name, part in parts.functions.items():
            typer.echo(f"    {name:<10} from line {part.line}")
        _find_optional(read, parts)
        for name in [name for name in parts.optional if name != "eval_data"]:
            parts.leave_out(name, f"it was not tried, because the recipe lacks {' and '.join(parts.missing)}")
        target.write_text(recipe_of(read, script, parts), encoding="utf-8")
        _say_left_out(parts)
        _say_numbers(parts)
        functions = " and ".join(FUNCTIONS[name][0] for name in parts.missing)
        typer.echo(f"It is not complete: write {functions} in {target}, then type:\n    lockstep compare {target}")
        return
    trial = _tried(target)
    for name in FUNCTIONS:
        typer.echo(f"    {name:<10} {_words(name, trial)}, from line {parts.functions[name].line}")
    _find_optional(read, parts)
    facts = DataFacts(
        seeded=trial.random_data, batch=trial.global_batch, samples=trial.samples, epoch_steps=trial.epoch_steps
    )
    facts = _add_optional(lambda facts: recipe_of(read, script, parts, facts), target, parts, facts)
    if facts.seeded:
        typer.echo("    The data is made of random numbers: make_data() seeds them, so that every worker has the same.")
    if trial.batchnorm:
        seen = f"{trial.global_batch // lanes_of(trial.global_batch)} of {trial.global_batch} samples"
        typer.echo(f"    The model has BatchNorm, which sees the samples of a lane, {seen}:")
        typer.echo("    lanes=1 in the recipe is as in the script, on one worker. More: lockstep docs 6")
    _say_numbers(parts)
    typer.echo(f"It runs on two samples. Read it, then type:\n    lockstep compare {target}")


def _find_optional(read: TrainingScript, parts: RecipeParts) -> None:
    from lockstep.first_recipe.evaluation_loops import find_evaluation
    from lockstep.first_recipe.schedules import find_schedule

    training = read.training()
    if training is not None:
        find_schedule(read, training, parts)
        find_evaluation(read, training, parts)


def _add_optional(text: Callable[[DataFacts], str], target: Path, parts: RecipeParts, facts: DataFacts) -> DataFacts:
    """Write the recipe with what not every recipe has, as far as that works, and say what it is."""
    from lockstep.first_recipe.trial import try_optional

    while True:
        target.write_text(text(facts), encoding="utf-8")
        tried = try_optional(target, [name for name in parts.optional if name != "eval_data"])
        for name, reason in tried.failed.items():
            parts.leave_out(name, f"it does not run in a recipe: {reason}")
        if not tried.failed and facts.seeded >= tried.random_data:
            break
        facts = replace(facts, seeded=facts.seeded or tried.random_data)
    for name, part in parts.optional.items():
        typer.echo(f"    {name:<10} {tried.words[name]}, from line {part.line}. {part.remark}".rstrip(". "))
    _say_left_out(parts)
    return facts


def _read(script: Path) -> TrainingScript:
    from lockstep.first_recipe.training_script import TrainingScript

    if not script.is_file():
        raise BadInput(f"{script}: no such file. `lockstep init` alone writes a small recipe, without a script")
    try:
        read = TrainingScript(script.read_text(encoding="utf-8"), str(script))
    except (SyntaxError, ValueError) as error:
        raise BadInput(f"{script} is not a Python script: {error}") from None
    if any(scope.name == "recipe" for scope in read.scopes):
        raise BadInput(f"{script} has a function recipe(): it is a recipe already. Type: lockstep compare {script}")
    return read


def _tried(target: Path) -> Trial:
    from lockstep.first_recipe.trial import try_recipe

    try:
        return try_recipe(target)
    except LockstepError as error:
        reason = str(error)
    except Exception as error:  # whatever the user's own code raises
        reason = "".join(traceback.format_exception_only(error)).strip()
    raise LockstepError(
        f"{target} is written, and does not run yet: {reason}\nMend it there, then type: lockstep compare {target}"
    )


def _say_left_out(parts: RecipeParts) -> None:
    for name, reason in parts.left_out.items():
        typer.echo(f"    {name:<10} left out: {reason}")


def _words(name: str, trial: Trial) -> str:
    return f"{trial.loss:.4f} for two samples" if name == "loss" else str(getattr(trial, name))


def _say_numbers(parts: RecipeParts) -> None:
    """Say where the batch of a step comes from, if the script does not have it in one place."""
    accumulated = f"; {parts.accumulated}" if parts.accumulated else ""
    if "global_batch" not in parts.values:
        typer.echo(f"    global_batch  not found, so 64 stands there: set it{accumulated}")
    elif accumulated:
        typer.echo(f"    global_batch  that of all batches of a step{accumulated}")


def _write(target: Path, text: str) -> None:
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise BadInput(f"cannot write {target}: {error.strerror}") from None
