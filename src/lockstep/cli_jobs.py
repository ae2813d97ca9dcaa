"""`lockstep jobs` and `lockstep stats`: what the queue and the run folders say of what is trained. No torch."""

from __future__ import annotations

import json as jsonlib
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lockstep.cli_options import Json
from lockstep.errors import BadInput

if TYPE_CHECKING:
    from lockstep.cluster.jobs import QueuedJob
    from lockstep.cluster.run_stats import RunStats

Runs = Annotated[Path, typer.Option(help="Folder that holds the runs.")]
SECONDS = 2.0
"""Between two looks of `--watch`."""


def jobs(runs: Runs = Path("runs"), json: Json = False) -> None:
    """List your Slurm jobs and what goes on in a folder of runs: state, nodes, step, loss, speed, time left."""
    from lockstep.cluster.jobs import job_rows

    rows = list(job_rows(runs))
    if json:
        typer.echo(jsonlib.dumps([_as_json(job, stats) for job, stats in rows], indent=1))
    elif not rows:
        typer.echo(f"no job of yours is in the queue, and nothing is trained in {runs}")
    else:
        from lockstep.cluster.jobs_table import jobs_table
        from lockstep.report.render import console

        console().print(jobs_table(rows))


def stats(
    what: Annotated[str, typer.Argument(metavar="RUN|JOBID", help="A run folder, or the number of a Slurm job.")],
    runs: Runs = Path("runs"),
    watch: Annotated[bool, typer.Option("--watch", help="Show it again and again until the run has ended.")] = False,
    json: Json = False,
) -> None:
    """Show how a run uses its machine: bars of CPU, memory and GPU for each rank, its steps, and one line of advice."""
    from lockstep.cluster.jobs import folder_of, is_job_number
    from lockstep.cluster.run_stats import run_stats
    from lockstep.cluster.stats_text import stats_lines
    from lockstep.runs.listing import State

    if watch and json:
        raise BadInput("--watch and --json exclude each other: --watch is for people")
    folder = folder_of(what, runs) if is_job_number(what) else Path(what)
    if not folder.is_dir():
        raise BadInput(f"{what} is no run folder and no number of a job: give one of them; `lockstep runs` lists runs")
    while True:
        present = run_stats(folder)
        if json:
            typer.echo(jsonlib.dumps(present.as_json(), indent=1))
            return
        for line in stats_lines(present):
            typer.echo(line)
        if not watch or present.run.state is not State.running:
            return
        typer.echo("")
        time.sleep(SECONDS)


def _as_json(job: QueuedJob | None, stats: RunStats | None) -> dict[str, Any]:
    return {
        "job": None if job is None else asdict(job),
        "run": None if stats is None else stats.as_json(),
    }
