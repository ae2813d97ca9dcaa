"""`lockstep compare`: the same recipe every way, side by side. Nothing here imports torch."""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lockstep.cli_options import (
    PEERS,
    STRATEGIES,
    Given,
    Json,
    Launcher,
    Out,
    numbers,
    stem,
    with_settings,
    with_threads,
)
from lockstep.comparison.defaults import REPEATS, SECONDS
from lockstep.errors import BadInput

if TYPE_CHECKING:
    from lockstep.comparison.run import Ran
    from lockstep.report.compare import Comparison
    from lockstep.train.schema.plan_json import ComparisonPlan

GOES_ON = {"resume", "recipe", "repeats", "time_limit", "per_rank", "tensorboard", "json"}
"""What may be said again when a comparison is resumed; everything else stands in its plan."""


@with_settings
def compare(
    given: Given,
    context: typer.Context,
    strategies: Annotated[
        str | None, typer.Option(help=f"Which, separated by commas: {STRATEGIES}.", show_default="all but the peers")
    ] = None,
    workers: Annotated[str, typer.Option(help="How many; several, as 1,2,4, give a scaling curve.")] = "2",
    lanes: Annotated[
        str | None,
        typer.Option(
            help="Fixed slices of the global batch; several, as 2,4,8, show what they cost.",
            show_default="the recipe's, else the most workers",
        ),
    ] = None,
    launcher: Launcher = "spawn",
    repeats: Annotated[
        int | None, typer.Option(min=1, help="How often each is run, in turn.", show_default=str(REPEATS))
    ] = None,
    time_limit: Annotated[
        float | None,
        typer.Option(
            min=1.0,
            metavar="SECONDS",
            help="Begin no repeat that would end later.",
            show_default=f"{SECONDS:g} where --repeats, --steps and --epochs are left out, else none",
        ),
    ] = None,
    peers: Annotated[bool, typer.Option("--peers", help=f"The peers too, on the same recipe: {PEERS}.")] = False,
    per_rank: Annotated[bool, typer.Option("--per-rank", help="Show a line for each rank as well.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard event files as well.")] = False,
    resume: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Go on with an interrupted comparison; needs no other option.")
    ] = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Train a recipe several ways, one after another, and show them side by side, with the reason why."""
    from lockstep.comparison.display import Display
    from lockstep.comparison.new_plan import Rows, asked_strategies, new_plan
    from lockstep.comparison.plan import write_plan
    from lockstep.comparison.run import run_all
    from lockstep.train.records import create_folder
    from lockstep.world.resources import choose_threads

    if resume is not None:
        folder, plan = resume, _resumed(context, resume, given.get("recipe"), repeats, time_limit)
    else:
        names = asked_strategies(None if strategies is None else strategies.split(","), peers=peers)
        counts = numbers("--workers", workers)
        rows = Rows(names, counts, [None] if lanes is None else numbers("--lanes", lanes))
        given = {"threads": str(choose_threads(os.environ)[0]), **given, "launcher": launcher}
        command = shlex.join(["lockstep", *sys.argv[1:]])
        plan = new_plan(with_threads(given, max(counts)), rows, repeats, time_limit, command)
        name = stem(plan.ways[0].spec.recipe)
        folder = create_folder(out or Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-compare-{name}")
        write_plan(folder, plan)
    ran = run_all(plan, folder, Display(len(plan.ways) * plan.repeats, plan.repeats))
    _show(plan, ran, folder, json=json, per_rank=per_rank, tensorboard=tensorboard)
    if ran.interrupted:
        typer.echo(f"interrupted: go on with lockstep compare --resume {shlex.quote(str(folder))}", err=True)
        raise typer.Exit(130)
    if not any(way.runs for way in ran.ways):
        raise typer.Exit(1)


def _resumed(
    context: typer.Context, folder: Path, recipe: str | None, repeats: int | None, time_limit: float | None
) -> ComparisonPlan:
    from msgspec.structs import replace

    from lockstep.comparison.plan import read_plan, write_plan

    typed = [name for name in context.params if str(context.get_parameter_source(name)) != "ParameterSource.DEFAULT"]
    extra = [name.replace("_", "-") for name in typed if name not in GOES_ON]
    if extra:
        raise BadInput(f"--resume takes everything from {folder}: leave out {', '.join(extra)}")
    plan = read_plan(folder, recipe)
    plan = replace(plan, repeats=repeats or plan.repeats, time_limit=time_limit or plan.time_limit)
    write_plan(folder, plan)
    return plan


def _show(plan: ComparisonPlan, ran: Ran, folder: Path, *, json: bool, per_rank: bool, tensorboard: bool) -> Comparison:
    """Judge, write the report's files, and print."""
    from lockstep.comparison.new_plan import judged
    from lockstep.report.files import json_text, write_all
    from lockstep.report.wording import written

    comparison = judged(plan, ran)
    made = write_all(comparison, folder, tensorboard=tensorboard)
    if json:
        typer.echo(json_text({"out": written(folder), **comparison.as_json()}, indent=1), nl=False)
        return comparison
    from lockstep.report.render import console
    from lockstep.report.terminal import show

    show(comparison, console(), per_rank=per_rank)
    if ran.stopped and not ran.interrupted:
        typer.echo(f"fewer repeats than {plan.repeats} of some: {ran.stopped}")
    typer.echo(f"report: {written(made[0])}")
    return comparison
