"""`lockstep fit`: what a worker of each strategy will need, and the cheapest way that fits. No torch here."""

from __future__ import annotations

import json as jsonlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lockstep.byte_sizes import read_bytes
from lockstep.cli_options import Given, Json, numbers, with_settings, with_threads

if TYPE_CHECKING:
    from lockstep.train.spec import RunSpec

DEFAULT_WORKERS = "1,2,4"


@with_settings
def fit(
    given: Given,
    workers: Annotated[str, typer.Option(help="Which numbers of workers to look at.")] = DEFAULT_WORKERS,
    memory: Annotated[
        str | None,
        typer.Option(
            help="Memory of each worker, e.g. 2GiB.",
            show_default="what is free on the device, or on the host for all its workers",
        ),
    ] = None,
    backend: Annotated[
        str | None, typer.Option(help="torch.distributed backend.", show_default="shared memory where it can be")
    ] = None,
    json: Json = False,
) -> None:
    """Tell how much memory a worker needs with each strategy, what fits, and what to type; nothing is trained."""
    from lockstep.fit.apart import measured_apart
    from lockstep.fit.choosing import advice, candidates, cheapest, command_of, limit_of

    counts = numbers("--workers", workers)
    asked = None if memory is None else read_bytes(memory, "--memory")
    spec = _spec(given, max(counts), backend)
    facts = measured_apart(spec)
    limit = limit_of(facts, asked)
    rows = candidates(facts, spec, counts, limit)
    best = cheapest(rows)
    command = None if best is None else command_of(best, [*given, "backend"], facts.lanes, Path.cwd())
    said = advice(rows, facts, limit) if best is None else ""
    if json:
        from lockstep.fit.fit_table import as_json

        typer.echo(jsonlib.dumps({**as_json(rows, facts, limit), "command": command, "advice": said}, indent=1))
        return
    from lockstep.fit.fit_table import NOTE, fit_table, why_not_lines
    from lockstep.report.render import console

    console().print(fit_table(rows, facts, limit))
    for line in why_not_lines(rows):
        typer.echo(line)
    typer.echo(NOTE)
    typer.echo(said if command is None else f"the cheapest way that fits: {command}")


def _spec(given: Given, most_workers: int, backend: str | None) -> RunSpec:
    """Return the settings of every row: as in a comparison, all rows have the same lanes and threads."""
    from lockstep.train.spec import DEFAULT_RECIPE, RunSpec
    from lockstep.world.resources import choose_threads

    decided = {"recipe": DEFAULT_RECIPE, "default_lanes": most_workers, "most_steps": 1, "progress": False}
    given = {"threads": str(choose_threads(os.environ)[0]), **given}
    return RunSpec(**{**decided, **with_threads(given, most_workers), "backend": backend})
