"""`lockstep runs` and `lockstep clean`: what was trained here, and removing what is not wanted any more. No torch."""

from __future__ import annotations

import json as jsonlib
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lockstep.cli_options import Json
from lockstep.errors import BadInput

if TYPE_CHECKING:
    from lockstep.runs.listing import ListedRun, State

Folder = Annotated[Path, typer.Argument(help="Folder that holds runs, or one run.")]


def runs(folder: Folder = Path("runs"), json: Json = False) -> None:
    """List the runs in a folder: state, step, loss, digest, size; those of comparisons too."""
    from lockstep.runs.listing import State, list_runs

    every = list_runs(folder)
    if json:
        typer.echo(jsonlib.dumps([_as_json(run) for run in every], indent=1))
        return
    if not every:
        typer.echo(f"{folder} holds no runs")
        return
    from lockstep.report.render import console
    from lockstep.runs.runs_table import runs_table

    console().print(runs_table(every, folder))
    for run in every:
        if run.state is State.unreadable:
            typer.echo(f"lockstep: {run.why}", err=True)


def clean(
    folder: Folder = Path("runs"),
    failed: Annotated[bool, typer.Option("--failed", help="Runs that failed.")] = False,
    unfinished: Annotated[
        bool, typer.Option("--unfinished", help="Runs without a result that nobody trains: they were killed.")
    ] = False,
    older_than: Annotated[
        float | None, typer.Option(help="Runs started more than so many days ago; with the above, only those.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove them. Without it they are only listed.")] = False,
    json: Json = False,
) -> None:
    """Remove runs that you name by their state or age; only listed unless you say --yes.

    A run that goes on is never removed, nor a folder that holds anything Lockstep did not write. Comparisons stay
    whole: give the folder of one to remove runs from it.
    """
    from lockstep.runs.cleaning import chosen, own_paths, remove
    from lockstep.runs.listing import State, listed, run_folders

    states = [state for state, asked in ((State.failed, failed), (State.unfinished, unfinished)) if asked]
    _check_choice(states, older_than)
    every = [listed(path) for path in run_folders(folder, comparisons=False)]
    left: list[tuple[ListedRun, str]] = []
    gone: list[ListedRun] = []
    for run in chosen(every, states=states, older_than=older_than, now=time.time()):
        try:
            remove(run.folder) if yes else own_paths(run.folder)
        except BadInput as error:
            left.append((run, str(error)))
        else:
            gone.append(run)
    if json:
        told = {"removed": yes, "runs": [_as_json(run) for run in gone]}
        told["left"] = [{"folder": str(run.folder), "why": why} for run, why in left]
        typer.echo(jsonlib.dumps(told, indent=1))
        return
    _tell(gone, [why for _, why in left], removed=yes)


def _check_choice(states: list[State], older_than: float | None) -> None:
    if not states and older_than is None:
        raise BadInput("say which runs: --failed, --unfinished, --older-than DAYS, or several of these")
    if older_than is not None and not older_than >= 0:
        raise BadInput(f"--older-than {older_than}: give a number of days, 0 or more")


def _tell(gone: list[ListedRun], left: list[str], *, removed: bool) -> None:
    from lockstep.report.units import plural, size

    for run in gone:
        typer.echo(f"{run.folder}: {run.state}, {plural(run.steps, 'step')}, {size(run.bytes)}")
    for why in left:
        typer.echo(f"lockstep: {why}", err=True)
    total = f"{plural(len(gone), 'run')}, {size(sum(run.bytes for run in gone))}"
    if removed:
        typer.echo(f"removed {total}")
    else:
        typer.echo(f"{total} would be removed: say --yes" if gone else "no run is like that: nothing to remove")


def _as_json(run: ListedRun) -> dict[str, object]:
    return {**asdict(run), "folder": str(run.folder), "state": str(run.state)}
