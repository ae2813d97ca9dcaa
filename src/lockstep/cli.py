"""The command line. Nothing here imports torch: `lockstep --help` answers at once."""

from __future__ import annotations

import json as jsonlib
import os
import shlex
import signal
import sys
import time
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from lockstep.cli_bench import Json, bench
from lockstep.cli_report import report
from lockstep.errors import BadInput, LockstepError
from lockstep.version import __version__

if TYPE_CHECKING:
    from types import FrameType

    from lockstep.launch.detect import Place
    from lockstep.train.spec import RunSpec

app = typer.Typer(
    name="lockstep",
    help="Train one PyTorch model on many workers: one recipe, every way, the same bits, measured.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


app.add_typer(bench, name="bench")
app.command()(report)


class Device(StrEnum):
    """What to compute on."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"
    xpu = "xpu"
    mps = "mps"


RecipeArgument = Annotated[str, typer.Argument(help="file.py, file.py:function, or cifar100, mlp, bytes.")]
Workers = Annotated[int | None, typer.Option(help="How many workers.", show_default="2 to compare, else 1")]
Lanes = Annotated[
    int | None,
    typer.Option(help="Fixed slices of the global batch; more lanes than workers is accumulation."),
]
Threads = Annotated[int | None, typer.Option(help="Threads per worker.", show_default="CPUs // workers")]
Steps = Annotated[int | None, typer.Option(help="Stop after so many steps.")]
Epochs = Annotated[int | None, typer.Option(help="Passes over the data.", show_default="the recipe's")]
GlobalBatch = Annotated[int | None, typer.Option(help="Samples per step over all workers.")]
Seed = Annotated[int | None, typer.Option(help="Of weights, order and dropout.")]
Data = Annotated[
    Path | None,
    typer.Option(help="Data for the recipe, e.g. the CIFAR-100 archive.", show_default="made up in memory"),
]
Out = Annotated[Path | None, typer.Option(help="Folder to make for the results.", show_default="runs/...")]
DeviceOption = Annotated[Device, typer.Option(help="What to compute on.")]
SyncBatchNorm = Annotated[
    bool, typer.Option("--sync-batchnorm", help="BatchNorm over all workers; results then depend on their number.")
]
LauncherOption = Annotated[
    str | None,
    typer.Option(help="inline, spawn, torchrun, srun or mpirun.", show_default="who started this, or spawn"),
]
NoMeasure = Annotated[bool, typer.Option("--no-measure", help="Note only time and loss: no parts, no fingerprints.")]
Nodes = Annotated[int | None, typer.Option(help="srun: over how many nodes.")]
LauncherArgs = Annotated[str, typer.Option(help='More arguments for srun or mpirun, e.g. "--partition=ml".')]


@app.callback(invoke_without_command=True)
def _main(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(f"lockstep {__version__}")
        raise typer.Exit


@app.command()
def run(
    recipe: RecipeArgument = "cifar100",
    strategy: Annotated[
        str | None, typer.Option(help="single, dp, ddp, torch-ddp, lightning or accelerate.", show_default="by workers")
    ] = None,
    workers: Workers = None,
    launcher: LauncherOption = None,
    lanes: Lanes = None,
    threads: Threads = None,
    steps: Steps = None,
    epochs: Epochs = None,
    global_batch: GlobalBatch = None,
    seed: Seed = None,
    data: Data = None,
    device: DeviceOption = Device.auto,
    backend: Annotated[str | None, typer.Option(help="torch.distributed backend.")] = None,
    sync_batchnorm: SyncBatchNorm = False,
    nodes: Nodes = None,
    launcher_args: LauncherArgs = "",
    rank: Annotated[int | None, typer.Option(help="By hand: which rank this terminal is.")] = None,
    rendezvous: Annotated[
        str | None, typer.Option(help="By hand: host:port of rank 0, or file:///path on one host.")
    ] = None,
    no_measure: NoMeasure = False,
    out: Out = None,
    json: Json = False,
) -> None:
    """Train a recipe one way, under any launcher."""
    from lockstep.launch.detect import detect
    from lockstep.launch.start import Reach, start_run

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
    spec = _spec(
        recipe=_reference(recipe),
        strategy=strategy or ("single" if count == 1 else "ddp"),
        workers=count,
        launcher=place.launcher if place else launcher or ("inline" if count == 1 else "spawn"),
        lanes=lanes,
        threads=threads,
        steps=steps,
        epochs=epochs,
        global_batch=global_batch,
        seed=seed,
        data=str(data.absolute()) if data else None,
        device=device.value,
        backend=backend,
        sync_batchnorm=sync_batchnorm,
        measure=not no_measure,
        progress=not json,
    )
    folder = out or Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{Path(recipe).stem}-{spec.strategy}"
    if place is not None:
        _as_rank(spec, place, folder, json)
    made = start_run(spec, folder, Reach(nodes=nodes, extra=tuple(shlex.split(launcher_args))))
    _show_run(made, json)


@app.command()
def compare(
    recipe: RecipeArgument = "cifar100",
    strategies: Annotated[str, typer.Option(help="Which, separated by commas.")] = "single,dp,ddp,torch-ddp",
    workers: Workers = None,
    launcher: LauncherOption = None,
    lanes: Lanes = None,
    threads: Threads = None,
    steps: Steps = None,
    epochs: Epochs = None,
    global_batch: GlobalBatch = None,
    seed: Seed = None,
    data: Data = None,
    device: DeviceOption = Device.auto,
    sync_batchnorm: SyncBatchNorm = False,
    repeats: Annotated[int, typer.Option(min=1, help="How often each is run, in turn.")] = 3,
    no_measure: NoMeasure = False,
    out: Out = None,
    json: Json = False,
) -> None:
    """Train a recipe several ways, one after another, and show them side by side."""
    from lockstep.comparison import run_all, ways
    from lockstep.report.picture import draw
    from lockstep.world import usable_cpus

    count = 2 if workers is None else workers
    spec = _spec(
        recipe=_reference(recipe),
        workers=count,
        launcher=launcher or "spawn",
        lanes=count if lanes is None else lanes,
        threads=threads,
        steps=steps,
        epochs=epochs,
        global_batch=global_batch,
        seed=seed,
        data=str(data.absolute()) if data else None,
        device=device.value,
        sync_batchnorm=sync_batchnorm,
        measure=not no_measure,
        progress=False,
    )
    names = [name.strip() for name in strategies.split(",") if name.strip()]
    if not names:
        raise BadInput("--strategies is empty: give at least one, e.g. --strategies single,torch-ddp")
    folder = out or Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-compare-{Path(recipe).stem}"
    rows = ways(spec, names, usable_cpus())
    found = run_all(rows, folder, repeats, tell=lambda text: typer.echo(f"{text} ...", err=True))
    title = f"{Path(recipe).stem}: {spec.lanes} lanes, {repeats} repeat{'s' if repeats > 1 else ''} each"
    (folder / "comparison.svg").write_text(draw(title, found), encoding="utf-8")
    if json:
        typer.echo(jsonlib.dumps({"out": str(folder), "rows": [row.as_json() for row in found]}, indent=1))
    else:
        from lockstep.report.render import comparison, console

        console().print(comparison(title, found))
        typer.echo(f"run folders and comparison.svg in {folder}")
    if not any(row.repeats for row in found):
        raise typer.Exit(1)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def launch(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(help="Any Python script; its own flags follow after --.")],
    workers: Annotated[int, typer.Option(min=1, help="How many processes.")] = 1,
    launcher: Annotated[str, typer.Option(help="inline, spawn, torchrun, srun or mpirun.")] = "spawn",
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


def _spec(**fields: object) -> RunSpec:
    from lockstep.train.spec import RunSpec

    return RunSpec(**fields)  # type: ignore[arg-type]


def _check_own_launch(strategy: str | None, launcher: str | None, nodes: int | None) -> None:
    from lockstep.strategies import PEERS

    if strategy in PEERS and (launcher is not None or nodes is not None):
        why = f"launcher {launcher}" if launcher is not None else "--nodes"
        raise BadInput(f"strategy {strategy} starts its own ranks on this host: {why} cannot be used with it")


def _reference(recipe: str) -> str:
    """Make a recipe file's path absolute: ranks may start in another folder."""
    path, colon, function = recipe.partition(":")
    return f"{Path(path).absolute()}{colon}{function}" if path.endswith(".py") or "/" in path else recipe


def _by_hand(rank: int, workers: int | None, rendezvous: str | None, launcher: str | None) -> Place:
    from lockstep.launch.addresses import split_address
    from lockstep.launch.detect import Place

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
