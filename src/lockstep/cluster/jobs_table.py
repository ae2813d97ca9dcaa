"""The table of `lockstep jobs`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from lockstep.cluster.jobs import QueuedJob
from lockstep.cluster.run_stats import RunStats
from lockstep.report.units import NONE, duration, rate


def jobs_table(rows: Sequence[tuple[QueuedJob | None, RunStats | None]]) -> Table:
    """Return a row for each job, or run without one."""
    table = Table(title="jobs", title_justify="left", title_style="bold")
    for heading in ("job", "name", "state", "nodes"):
        table.add_column(heading, overflow="fold")
    for heading in ("step", "loss", "samples/s", "run ends in", "job ends in"):
        table.add_column(heading, justify="right", no_wrap=True)
    for job, stats in rows:
        table.add_row(*cells(job, stats))
    return table


def cells(job: QueuedJob | None, stats: RunStats | None) -> list[str]:
    """Return the cells of a row; what the queue does not know comes from the run, and the other way round."""
    run = stats.run if stats else None
    number = job.number if job else stats.job if stats else ""
    name = job.name if job else run.folder.name if run else ""
    state = job.state.lower() if job else str(run.state) if run else ""
    if job is not None and job.state == "PENDING" and job.reason:
        state += f" ({job.reason})"
    nodes = job.nodes if job and job.nodes else ", ".join(stats.hosts) if stats else ""
    return [
        escape(number) or NONE,
        escape(name),
        escape(state),
        escape(nodes) or NONE,
        f"{run.steps}/{run.planned}" if run else NONE,
        f"{run.loss:.4f}" if run and run.loss is not None else NONE,
        rate(stats.samples_per_second) if stats else NONE,
        duration(stats.seconds_left) if stats else NONE,
        escape(job.time_left) if job else NONE,
    ]
