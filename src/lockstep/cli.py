"""The command line. Nothing here imports torch: `lockstep --help` answers at once."""

from __future__ import annotations

import json as jsonlib
import os
import shlex
import signal
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from lockstep.cli_bench import bench
from lockstep.cli_compare import compare
from lockstep.cli_export import export
from lockstep.cli_options import (
    STRATEGIES,
    Json,
    Launcher,
    LauncherFound,
    ListingCommand,
    Out,
    RecipeOptions,
    Threads,
    with_recipe_options,
)
from lockstep.cli_report import report
from lockstep.errors import BadInput, LockstepError
from lockstep.version import __version__

if TYPE_CHECKING:
    from types import FrameType

    from lockstep.train.spec import RunSpec
    from lockstep.world.place import Place

app = typer.Typer(
    name="lockstep",
    help="Train one PyTorch model on many workers: one recipe, every way, the same bits, measured.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


app.add_typer(bench, name="bench")
app.command(cls=ListingCommand)(compare)
app.command()(report)
app.command()(export)


Nodes = Annotated[int | None, typer.Option(help="srun: over how many nodes.")]
LauncherArgs = Annotated[str, typer.Option(help='More arguments for srun or mpirun, e.g. "--partition=ml".')]


@app.callback(invoke_without_command=True)
def _main(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(f"lockstep {__version__}")
        raise typer.Exit


@app.command(cls=ListingCommand)
@with_recipe_options
def run(
    asked: RecipeOptions,
    context: typer.Context,
    strategy: Annotated[str | None, typer.Option(help=f"{STRATEGIES}.", show_default="by workers")] = None,
    workers: Annotated[int | None, typer.Option(help="How many workers.", show_default="1")] = None,
    launcher: LauncherFound = None,
    backend: Annotated[str | None, typer.Option(help="torch.distributed backend.")] = None,
    inexact: Annotated[
        bool, typer.Option("--inexact", help="A running sum per worker; the bits then depend on their number.")
    ] = False,
    nodes: Nodes = None,
    launcher_args: LauncherArgs = "",
    rank: Annotated[int | None, typer.Option(help="By hand: which rank this terminal is.")] = None,
    rendezvous: Annotated[
        str | None, typer.Option(help="By hand: host:port of rank 0, or file:///path on one host.")
    ] = None,
    checkpoint_every: Annotated[
        int | None, typer.Option(help="Write a checkpoint after every so many steps, and after the last.")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(help="Go on with the run in this folder; what else is given replaces what it was started with."),
    ] = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Train a recipe one way, under any launcher."""
    from lockstep.launch.start import Reach, start_run
    from lockstep.registry import BASELINE, DEFAULT
    from lockstep.strategies import check_exact
    from lockstep.world.detect import detect

    place: Place | None = None
    if rank is not None:
        place = _by_hand(rank, workers, rendezvous, launcher)
    elif rendezvous is not None:
        raise BadInput("--rendezvous is for ranks started by hand: give --rank and --workers with it")
    elif launcher is None:
        found = detect(os.environ)
        place = found if found.launcher != "inline" else None
    _check_own_launch(strategy, launcher or (place.launcher if place else None), nodes)
    count = place.size if place else (1 if workers is None else workers)
    if place and workers not in (None, place.size):
        raise BadInput(f"--workers {workers}, but {place.launcher} started {place.size}: leave --workers out")
    spec = asked.spec(
        strategy=strategy or (BASELINE if count == 1 else DEFAULT),
        workers=count,
        launcher=place.launcher if place else launcher or ("inline" if count == 1 else "spawn"),
        backend=backend,
        exact=not inexact,
        checkpoint_every=checkpoint_every,
        progress=not json,
    )
    if resume is not None:
        spec, out = _resumed(context, spec, place), resume.absolute()
    check_exact(spec.strategy, spec.exact)
    folder = out or Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{asked.stem}-{spec.strategy}"
    if place is not None:
        _as_rank(spec, place, folder, json)
    made = start_run(spec, folder, Reach(nodes=nodes, extra=tuple(shlex.split(launcher_args))))
    _show_run(made, json)


@app.command(cls=ListingCommand, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def launch(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="Any Python script; its own flags follow after --.")],
    workers: Annotated[int, typer.Option(min=1, help="How many processes.")] = 1,
    launcher: Launcher = "spawn",
    threads: Threads = None,
    nodes: Nodes = None,
    launcher_args: LauncherArgs = "",
) -> None:
    """Start any Python script on several workers, also one that uses stock torch.distributed."""
    from lockstep.launch.script import launch_script
    from lockstep.launch.start import Reach

    reach = Reach(nodes=nodes, extra=tuple(shlex.split(launcher_args)))
    launch_script((str(script), *context.args), workers, launcher, threads, reach)


@app.command()
def doctor(json: Json = False) -> None:
    """Show what would be used here, and which variables made it so, before any collective runs."""
    from lockstep.doctor import examine

    found = examine()
    if json:
        typer.echo(jsonlib.dumps(found, indent=1))
        return
    for name, value in found.items():
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
        app(standalone_mode=True)
    except LockstepError as error:
        typer.echo(f"lockstep: {error}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        typer.echo("lockstep: interrupted", err=True)
        sys.exit(130)
    sys.exit(0)


def _terminated(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)  # so that what was started is ended on the way out


def _check_own_launch(strategy: str | None, launcher: str | None, nodes: int | None) -> None:
    from lockstep.registry import PEERS

    if strategy in PEERS and (launcher is not None or nodes is not None):
        why = f"launcher {launcher}" if launcher is not None else "--nodes"
        raise BadInput(f"strategy {strategy} starts its own ranks on this host: {why} cannot be used with it")


def _resumed(context: typer.Context, spec: RunSpec, place: Place | None) -> RunSpec:
    """Return the order to go on with: as the folder says, but for what was typed, or what the launcher says."""
    from lockstep.train.resume import read_standing, resumed_spec

    folder = context.params["resume"]
    typed = {name for name in context.params if str(context.get_parameter_source(name)) != "ParameterSource.DEFAULT"}
    if "out" in typed:
        raise BadInput(f"--resume {folder} goes on in that folder: leave --out out")
    given = {{"no_measure": "measure", "inexact": "exact"}.get(name, name) for name in typed} | {"progress"}
    given |= {"workers", "launcher"} if place else set()
    fields = {name: value for name, value in asdict(spec).items() if name in given - {"resume"}}
    return resumed_spec(read_standing(folder.absolute()), fields)


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
    place = Place(launcher="manual", rank=rank, size=workers, local_rank=rank, local_size=workers, located=False)
    if rendezvous.startswith("file://"):
        return replace(place, rendezvous=rendezvous)
    head, port = split_address(rendezvous)
    return replace(place, head=head, port=port)


def _as_rank(spec: RunSpec, place: Place, folder: Path, json: bool) -> NoReturn:
    """Be one rank of a world that somebody else started."""
    from lockstep.launch.worker import leave, work_here

    code, made = work_here(spec, place, folder)
    if code == 0 and place.rank == 0 and made is not None:
        _show_run(made, json)
    leave(code)


def _show_run(folder: Path, json: bool) -> None:
    from lockstep.report.collect import read_run

    run = read_run(folder)
    if json:
        typer.echo(jsonlib.dumps({"out": str(folder), "losses": run.losses, "result": run.result}, indent=1))
        return
    from lockstep.report.render import console, loss_table, run_lines

    console().print(loss_table(run))
    for line in run_lines(run):
        typer.echo(line)


if __name__ == "__main__":
    main()
