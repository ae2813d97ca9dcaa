"""The command line. Nothing here imports torch: `lockstep --help` answers at once."""

from __future__ import annotations

import json as jsonlib
import os
import shlex
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from lockstep import process_wide
from lockstep.cli_bench import bench
from lockstep.cli_compare import compare
from lockstep.cli_export import export
from lockstep.cli_options import (
    Given,
    Json,
    Launcher,
    ListingCommand,
    Out,
    Threads,
    stem,
    with_settings,
    with_threads,
)
from lockstep.cli_report import report
from lockstep.cli_runs import clean, runs
from lockstep.errors import BadInput, Interrupted, LockstepError
from lockstep.version import __version__

if TYPE_CHECKING:
    from types import FrameType

    from lockstep.train.resume import Standing
    from lockstep.train.spec import RunSpec
    from lockstep.world.place import Place


class Commands(TyperGroup):
    """All commands; Ctrl-C ends any of them with one line that says where it stopped."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was typed."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            typer.echo(f"lockstep: {error if isinstance(error, Interrupted) else 'interrupted'}", err=True)
            raise typer.Exit(Interrupted.exit_code) from None


app = typer.Typer(
    name="lockstep",
    cls=Commands,
    help="Train one PyTorch model on many workers: one recipe, every way, the same bits, measured.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


app.add_typer(bench, name="bench")
app.command(cls=ListingCommand)(compare)
app.command(cls=ListingCommand)(report)
app.command(cls=ListingCommand)(export)
app.command(cls=ListingCommand)(runs)
app.command(cls=ListingCommand)(clean)


Nodes = Annotated[int | None, typer.Option(help="srun: over how many nodes.")]
LauncherArgs = Annotated[str, typer.Option(help='More arguments for srun or mpirun, e.g. "--partition=ml".')]


@app.callback(invoke_without_command=True)
def _main(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(f"lockstep {__version__}")
        raise typer.Exit


@app.command(cls=ListingCommand)
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
    show_schedule: Annotated[
        bool, typer.Option("--show-schedule", help="Draw which stage computes which lane when, and train nothing.")
    ] = False,
    out: Out = None,
    json: Json = False,
) -> None:
    """Train a recipe one way, under any launcher."""
    from lockstep.launch.start import LauncherOptions, start_run
    from lockstep.strategies import check_exact
    from lockstep.train.resume import resumed_spec
    from lockstep.world.resources import local_workers

    place = _place(given, rank, rendezvous)
    given = {**given, "progress": not json, "monitored": True}
    if place is not None:
        given |= {"workers": place.size, "launcher": place.launcher}
    _check_own_launch(given, nodes)
    standing = None if resume is None else _standing(resume, out)
    workers = given.get("workers", standing.setup.spec.workers if standing else 1)
    given = with_threads(given, place.local_size if place else local_workers(workers, nodes))
    spec = _new_spec(given) if standing is None else resumed_spec(standing, given)
    check_exact(spec.strategy, spec.exact)
    if show_schedule:
        _show_schedule(spec)
        return
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{stem(spec.recipe)}-{spec.strategy}"
    folder = resume.absolute() if resume is not None else out or Path("runs") / name
    if place is not None:
        _as_rank(spec, place, folder, json)
    made = start_run(spec, folder, LauncherOptions(nodes=nodes, extra=tuple(shlex.split(launcher_args))))
    _show_run(made, json)


def _show_schedule(spec: RunSpec) -> None:
    from lockstep.train.stage_check import check_settings_of_stages, schedule_text

    check_settings_of_stages(spec)
    recipe = spec.load()
    typer.echo(schedule_text(spec, spec.plan(recipe, recipe.dataset())))


@app.command(
    cls=ListingCommand,
    # What comes after the script is the script's own, also an option that launch has too (a stock script's --workers).
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False},
)
def launch(
    context: typer.Context,
    script: Annotated[
        str | None, typer.Argument(help="Any Python script; what comes after it are its own options.")
    ] = None,
    module: Annotated[bool, typer.Option("-m", "--module", help="It is a module, as in python -m.")] = False,
    workers: Annotated[int, typer.Option(min=1, help="How many processes.")] = 1,
    launcher: Launcher = "spawn",
    threads: Threads = None,
    nodes: Nodes = None,
    launcher_args: LauncherArgs = "",
) -> None:
    """Start any Python script on several workers, also one that uses stock torch.distributed."""
    from lockstep.launch.program import misplaced, program_of
    from lockstep.launch.script import launch_script
    from lockstep.launch.start import LauncherOptions

    typed = ([script] if script is not None else []) + context.args
    options = [name for parameter in context.command.params for name in parameter.opts if name.startswith("-")]
    program = program_of(typed, options, module=module)
    if note := misplaced(program, options):
        typer.echo(f"lockstep: {note}", err=True)
    launcher_options = LauncherOptions(nodes=nodes, extra=tuple(shlex.split(launcher_args)))
    launch_script(program, workers, launcher, threads, launcher_options)


@app.command(cls=ListingCommand)
def doctor(json: Json = False) -> None:
    """Show what would be used here, and which variables made it so, before any collective runs."""
    from lockstep.doctor import examine

    examination = examine()
    if json:
        typer.echo(jsonlib.dumps(examination, indent=1))
        return
    for name, value in examination.items():
        label = name.replace("_", " ")
        if isinstance(value, dict):
            typer.echo(f"{label}:")
            for key, entry in value.items():
                typer.echo(f"    {key}: {entry}")
        elif isinstance(value, list):
            for entry in value or ["none"]:
                typer.echo(f"{label}: {entry}")
        else:
            typer.echo(f"{label}: {value}")


def main() -> NoReturn:
    """Run the command line; every error is one message and an exit code that says whose it was."""
    signal.signal(signal.SIGTERM, _terminated)
    try:
        process_wide.check()
        app(standalone_mode=True)
    except LockstepError as error:
        typer.echo(f"lockstep: {error}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        typer.echo("lockstep: interrupted", err=True)
        sys.exit(Interrupted.exit_code)
    sys.exit(0)


def _terminated(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)  # so that what was started is ended on the way out


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


def _new_spec(given: Given) -> RunSpec:
    """Return the spec of a new run: what was typed, and what follows from the number of workers."""
    from lockstep.registry import BASELINE, DEFAULT
    from lockstep.train.spec import DEFAULT_RECIPE, RunSpec

    alone = given.get("workers", 1) == 1
    strategy, launcher = (BASELINE, "inline") if alone else (DEFAULT, "spawn")
    return RunSpec(**{"recipe": DEFAULT_RECIPE, "strategy": strategy, "launcher": launcher, **given})


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


def _as_rank(spec: RunSpec, place: Place, folder: Path, json: bool) -> NoReturn:
    """Be one rank of a world that somebody else started."""
    from lockstep.launch.process_exit import exit_now
    from lockstep.launch.worker import work_here

    code, made = work_here(spec, place, folder)
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


if __name__ == "__main__":
    main()
