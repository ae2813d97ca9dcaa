"""`lockstep run`: train a recipe one way, start its ranks or be one of them."""

from __future__ import annotations

import json as jsonlib
import os
import shlex
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from lockstep.cli_options import Given, Json, LauncherArgs, Nodes, Out, stem, with_settings, with_threads
from lockstep.errors import BadInput

if TYPE_CHECKING:
    from lockstep.train.resume import Standing
    from lockstep.train.spec import RunSpec
    from lockstep.world.place import Place


@with_settings
def run(
    given: Given,
    nodes: Nodes = None,
    launcher_args: LauncherArgs = "",
    rank: Annotated[int | None, typer.Option(help="By hand: which rank this terminal is.")] = None,
    rendezvous: Annotated[
        str | None, typer.Option(help="By hand: host:port of rank 0, or file:///path on one host.")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(help="Go on with the run in this folder; what else is given replaces what it was started with."),
    ] = None,
    go_on: Annotated[
        bool, typer.Option("--continue", help="Begin the run in --out, or go on with it if it is there already.")
    ] = False,
    show_schedule: Annotated[
        bool, typer.Option("--show-schedule", help="Draw which stage computes which lane when, and train nothing.")
    ] = False,
    out: Out = None,
    json: Json = False,
) -> None:
    """Train a recipe one way, under any launcher."""
    from lockstep.launch.again import in_batch_job, restarts, started
    from lockstep.launch.start import LauncherOptions, start_run
    from lockstep.strategies import check_exact
    from lockstep.train.resume import resumed_spec
    from lockstep.train.spec import new_spec
    from lockstep.world.resources import local_workers

    place = _place(given, rank, rendezvous)
    go_on = _goes_on(go_on, out, resume)
    given = {**given, "progress": not json, "monitored": True, "stoppable": go_on or in_batch_job(os.environ)}
    if place is not None:
        given |= {"workers": place.size, "launcher": place.launcher}
    _check_own_launch(given, nodes)
    standing = None if resume is None else _standing(resume, out)
    workers = given.get("workers", standing.setup.spec.workers if standing else 1)
    given = with_threads(given, place.local_size if place else local_workers(workers, nodes))
    spec = new_spec(given) if standing is None else resumed_spec(standing, given)
    check_exact(spec.strategy, spec.exact)
    if show_schedule:
        _show_schedule(spec)
        return
    name = f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(started(os.environ)))}-{stem(spec.recipe)}-{spec.strategy}"
    folder = resume.absolute() if resume is not None else out or Path("runs") / name
    if place is not None:
        _as_rank(spec, place, folder, json, given if go_on or restarts(os.environ) else None)
    if go_on:
        spec = _ready(spec, folder, given, json)
    made = start_run(spec, folder, LauncherOptions(nodes=nodes, extra=tuple(shlex.split(launcher_args))))
    _show_run(made, json)


def _show_schedule(spec: RunSpec) -> None:
    from lockstep.train.stage_check import check_settings_of_stages, schedule_text

    check_settings_of_stages(spec)
    recipe = spec.load()
    typer.echo(schedule_text(spec, spec.plan(recipe, recipe.dataset())))


def _place(given: Given, rank: int | None, rendezvous: str | None) -> Place | None:
    """Return the place that somebody else gave this process; None: the workers are ours to start."""
    from lockstep.world.detect import detect

    workers, launcher = given.get("workers"), given.get("launcher")
    if rank is not None:
        return _by_hand(rank, workers, rendezvous, launcher)
    if rendezvous is not None:
        raise BadInput("--rendezvous is for ranks started by hand: give --rank and --workers with it")
    place = detect(os.environ) if launcher is None else None
    if place is None or place.launcher == "inline":
        return None
    if workers not in (None, place.size):
        raise BadInput(f"--workers {workers}, but {place.launcher} started {place.size}: leave --workers out")
    return place


def _check_own_launch(given: Given, nodes: int | None) -> None:
    from lockstep.registry import PEERS

    strategy, launcher = given.get("strategy"), given.get("launcher")
    if strategy in PEERS and (launcher is not None or nodes is not None):
        why = f"launcher {launcher}" if launcher is not None else "--nodes"
        raise BadInput(f"strategy {strategy} starts its own ranks on this host: {why} cannot be used with it")


def _standing(folder: Path, out: Path | None) -> Standing:
    """Return how far the run in a folder came."""
    from lockstep.train.resume import read_standing

    if out is not None:
        raise BadInput(f"--resume {folder} goes on in that folder: leave --out out")
    return read_standing(folder.absolute())


def _by_hand(rank: int, workers: int | None, rendezvous: str | None, launcher: str | None) -> Place:
    from lockstep.world.addresses import split_address
    from lockstep.world.place import Place

    missing = [name for name, value in (("--workers", workers), ("--rendezvous", rendezvous)) if value is None]
    if missing or workers is None or rendezvous is None:
        raise BadInput(
            f"--rank starts one rank by hand and needs {' and '.join(missing)} too, the same in every terminal: "
            "--workers 2 --rendezvous 127.0.0.1:29511 (or file:///path on one host)"
        )
    if launcher is not None:
        raise BadInput("--rank means that you start the ranks: leave --launcher out")
    place = Place(launcher="manual", rank=rank, size=workers, local_rank=rank, local_size=workers, hosts_known=False)
    if rendezvous.startswith("file://"):
        return replace(place, rendezvous=rendezvous)
    head, port = split_address(rendezvous)
    return replace(place, head=head, port=port)


def _goes_on(asked: bool, out: Path | None, resume: Path | None) -> bool:
    """Say whether a run that is there already goes on; refuse to look for it nowhere."""
    if asked and resume is not None:
        raise BadInput("--continue and --resume exclude each other: --resume FOLDER goes on with a run that is there")
    if asked and out is None:
        raise BadInput("--continue needs --out FOLDER: the run begins there, and goes on there the next time")
    return asked


def _ready(spec: RunSpec, folder: Path, given: Given, json: bool) -> RunSpec:
    """Return the settings of a run that begins or goes on; one that is complete is shown."""
    from lockstep.train.continuing import complete, ready_to_go_on

    if complete(folder):
        _show_run(folder, json)
        raise typer.Exit
    return ready_to_go_on(spec, folder.absolute(), given)


def _as_rank(spec: RunSpec, place: Place, folder: Path, json: bool, again: Given | None) -> NoReturn:
    """Be one rank of a world that somebody else started."""
    from lockstep.launch.process_exit import exit_now
    from lockstep.launch.worker import work_here

    code, made = work_here(spec, place, folder, again)
    if code == 0 and place.rank == 0 and made is not None:
        _show_run(made, json)
    exit_now(code)


def _show_run(folder: Path, json: bool) -> None:
    import msgspec

    from lockstep.report.collect import read_finished
    from lockstep.report.reproduce import reproduce

    run = read_finished(folder)
    if json:
        result = msgspec.to_builtins(run.result)
        evaluations = [msgspec.to_builtins(line) for line in run.evaluations]
        shown = {"out": str(folder), "losses": run.losses, "evaluations": evaluations, "result": result}
        shown["reproduce"] = reproduce(run, Path.cwd())
        typer.echo(jsonlib.dumps(shown, indent=1))
        return
    from lockstep.report.render import console, evaluation_table, loss_table, run_lines

    console().print(loss_table(run))
    if len(run.evaluations) > 1:
        console().print(evaluation_table(run))
    for line in run_lines(run):
        typer.echo(line)
