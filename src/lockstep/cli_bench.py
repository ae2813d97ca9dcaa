"""`lockstep bench`: one command per table. Nothing here imports torch before a command runs."""

from __future__ import annotations

import json as jsonlib
from typing import Annotated

import typer

from lockstep.cli_options import Json
from lockstep.errors import BadInput

bench = typer.Typer(help="The tables: ours beside the stock parts, from one interleaved run.", no_args_is_help=True)

Repeats = Annotated[int, typer.Option(min=1, help="How often each side is timed, in turn.")]


@bench.command()
def start(repeats: Repeats = 5, json: Json = False) -> None:
    """Time from command to help text and to the first training step, beside stock PyTorch."""
    from lockstep.bench.start import run as measure
    from lockstep.report.render import console, figures

    found = measure(repeats)
    if json:
        typer.echo(jsonlib.dumps([{**vars(figure), "ratio": figure.ratio} for figure in found], indent=1))
    else:
        console().print(figures(f"start-up, {repeats} repeats each", found))


@bench.command()
def collectives(repeats: Repeats = 20, json: Json = False) -> None:
    """Time all_reduce on gloo, on shm, and in place in shared memory, beside a plain copy of the bytes."""
    from lockstep.bench.collectives import main as measure

    measure(json=json, repeats=repeats)


@bench.command()
def ddp(repeats: Repeats = 20, json: Json = False) -> None:
    """Time a training step without communication, with torch DDP, and with ours; and take the memory."""
    from lockstep.bench.ddp import main as measure

    measure(json=json, repeats=repeats)


@bench.command()
def measure(repeats: Repeats = 40, json: Json = False) -> None:
    """Time a training step with everything noted and with --no-measure."""
    from lockstep.bench.measure import main

    main(json=json, repeats=repeats)


@bench.command()
def syncbn(
    runs: Annotated[int, typer.Option(min=40, help="Steps timed for each cell; a tenth for images.")] = 1000,
    json: Json = False,
) -> None:
    """Time and memory of SyncBatchNorm on 2 workers, beside a version by hand and local BatchNorm."""
    from lockstep.bench.syncbn import as_json, run, tables
    from lockstep.report.render import console

    found = run(runs)
    if json:
        typer.echo(jsonlib.dumps(as_json(found), indent=1))
        return
    for table in tables(found):
        console().print(table)


@bench.command("data")
def bench_data(
    items: Annotated[str, typer.Option(help="How many items, separated by commas.")] = "2000,10000,200000",
    elements: Annotated[int, typer.Option(min=1, help="Numbers per item.")] = 2048,
    ranks: Annotated[int, typer.Option(min=1, help="Processes that hold the data at once.")] = 4,
    samples: Annotated[int, typer.Option(min=1000, help="Of the epoch whose first batch is timed.")] = 100_000_000,
    training: Annotated[
        bool, typer.Option(help="Time a small training too: by hand, and in Lightning if it is installed.")
    ] = True,
    repeats: Repeats = 3,
    json: Json = False,
) -> None:
    """Hold tensors in memory three ways: one big tensor, a list of tensors, a Ragged."""
    from lockstep.bench.data import Options
    from lockstep.bench.data import run as measure

    try:
        sizes = tuple(int(part) for part in items.split(","))
    except ValueError:
        raise BadInput(f"--items {items}: numbers separated by commas are needed, e.g. 2000,10000") from None
    options = Options(items=sizes, elements=elements, ranks=ranks, repeats=repeats, sampled=samples, training=training)
    found = measure(options, tell=lambda text: typer.echo(f"{text} ...", err=True))
    if json:
        typer.echo(jsonlib.dumps(found.as_json(), indent=1))
        return
    from lockstep.bench.data_table import tables
    from lockstep.report.render import console

    for table in tables(found):
        console().print(table)
