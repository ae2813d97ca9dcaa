"""`lockstep init`: write a first recipe. Nothing here imports torch; the trial of what was written does."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lockstep.errors import BadInput, LockstepError

if TYPE_CHECKING:
    from lockstep.first_recipe.training_script import RecipeParts, TrainingScript
    from lockstep.first_recipe.trial import Trial

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
    from lockstep.first_recipe.writing import FUNCTIONS, recipe_of

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
        _say_schedule(parts)
        return
    trial = _tried(target)
    for name in FUNCTIONS:
        typer.echo(f"    {name:<10} {_words(name, trial)}, from line {parts.functions[name].line}")
    _say_schedule(parts)
    seeded, batch = trial.random_data, trial.global_batch
    target.write_text(recipe_of(read, script, parts, seeded=seeded, batch=batch), encoding="utf-8")
    if seeded:
        typer.echo("    The data is made of random numbers: make_data() seeds them, so that every worker has the same.")
    typer.echo(f"It runs on {_counted(parts)}. Read it, then type:\n    lockstep compare {target}")


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


def _say_schedule(parts: RecipeParts) -> None:
    from lockstep.first_recipe.writing import schedule_of

    if parts.schedule is not None:
        typer.echo(f"    schedule   left out: {schedule_of(parts.schedule)}")


def _words(name: str, trial: Trial) -> str:
    return f"{trial.loss:.4f} for two samples" if name == "loss" else str(getattr(trial, name))


def _counted(parts: RecipeParts) -> str:
    return (
        "two samples"
        if "global_batch" in parts.values
        else "two samples; the batch size was not found, so 64 stands there"
    )


def _write(target: Path, text: str) -> None:
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise BadInput(f"cannot write {target}: {error.strerror}") from None
