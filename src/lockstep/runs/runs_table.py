"""The table of `lockstep runs`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from lockstep.report.units import NONE, size
from lockstep.runs.listing import ListedRun, State

COLOURS = {State.done: "green", State.stopped: "green", State.running: "cyan", State.failed: "red"}
SHOWN_DIGITS = 12
"""Of a digest."""


def runs_table(runs: Sequence[ListedRun], folder: Path) -> Table:
    """Return a row for each run, named by its place in the folder."""
    table = Table(title=f"runs in {escape(str(folder))}", title_justify="left", title_style="bold")
    for heading in ("run", "state", "recipe", "strategy"):
        table.add_column(heading, overflow="fold")
    for heading in ("workers", "threads", "step", "loss", "digest", "size", "started"):
        table.add_column(heading, justify="right", no_wrap=True)
    for run in runs:
        table.add_row(*row(run, folder))
    return table


def row(run: ListedRun, folder: Path) -> list[str]:
    """Return the cells of a run."""
    name = run.folder.name if run.folder == folder else str(run.folder.relative_to(folder))
    colour = COLOURS.get(run.state, "yellow")
    known = run.state is not State.unreadable
    return [
        escape(name),
        f"[{colour}]{run.state}[/]",
        escape(run.recipe) or NONE,
        run.strategy or NONE,
        str(run.workers) if known else NONE,
        NONE if run.threads is None else str(run.threads),
        f"{run.steps}/{run.planned}" if known else NONE,
        NONE if run.loss is None else f"{run.loss:.4f}",
        run.digest[:SHOWN_DIGITS] or NONE,
        size(run.bytes),
        time.strftime("%Y-%m-%d %H:%M", time.localtime(run.created)),
    ]
