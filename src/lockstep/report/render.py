"""Tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lockstep.report.bubbles import bubble_of
from lockstep.report.reproduce import reproduce, with_digest
from lockstep.report.units import plural
from lockstep.train.same_bits import bits_hold_for
from lockstep.train.weights import BEST
from lockstep.train.weights import NAME as WEIGHTS

if TYPE_CHECKING:
    from lockstep.report.collect import FinishedRun, Run

LOSS_ROWS = 8
WIDTH = 160
"""Of tables in a file."""


def console() -> Console:
    """Return the console for results; wide enough for a table when the output is a file."""
    plain = Console()
    return plain if plain.is_terminal else Console(width=WIDTH)


def loss_table(run: Run) -> Table:
    """Return the losses of a run at a few steps, first and last among them."""
    table = Table(title="loss by step", title_justify="left")
    shown = _spread(len(run.losses))
    for step in shown:
        table.add_column(str(step), justify="right")
    table.add_row(*(f"{run.losses[step]:.6f}" for step in shown))
    return table


def evaluation_table(run: Run) -> Table:
    """Return the metrics of a run after a few steps, first and last among them."""
    table = Table(title="evaluation after steps", title_justify="left")
    shown = [run.evaluations[place] for place in _spread(len(run.evaluations))]
    table.add_column("")
    for line in shown:
        table.add_column(str(line.steps), justify="right")
    for name in run.evaluations[-1].metrics:
        values = (line.metrics.get(name) for line in shown)
        table.add_row(escape(name), *("not a number" if value is None else f"{value:.4f}" for value in values))
    return table


def run_lines(run: FinishedRun) -> list[str]:
    """Return what a person wants to know of one run."""
    result, setup = run.result, run.setup
    spec = setup.spec
    shown = {name: "not a number" if value is None else f"{value:.4f}" for name, value in result.metrics.items()}
    metrics = ", ".join(f"{name} {value}" for name, value in shown.items())
    memory = f"{result.memory_measure} {_mebibytes(result.peak_memory)}"
    if result.peak_reserved:
        memory += f", reserved {_mebibytes(result.peak_reserved)}"
    lanes = plural(setup.plan.lanes, "lane")
    how = f"{spec.strategy} on {plural(spec.workers, 'worker')} by {spec.launcher}, {lanes}"
    since = f" (from step {result.resumed[-1].step} on)" if result.resumed else ""
    speed = f"{result.steps} steps{since} in {result.seconds:.2f} s, {result.samples_per_second:.0f} samples/s"
    holds = bits_hold_for(spec, lanes=setup.plan.lanes, global_batch=setup.recipe.global_batch)
    said = (
        ("exchange", result.exchange),
        ("optimizer", result.optimizer),
        ("cut", result.cut),
        ("weights", result.shards),
    )
    bubble = bubble_of(run)
    ran = [f"{what}: {text}" for what, text in said if text]
    return [
        f"{setup.recipe.name} with {how}, {plural(result.threads, 'thread')} each, {result.device}",
        f"{speed}, {memory}",
        *([", ".join(ran)] if ran else []),
        *([bubble.in_words] if bubble is not None else []),
        f"evaluation: {metrics or 'none'}",
        *_best_lines(run),
        f"digest {result.digest}",
        holds,
        f"run folder {run.folder}",
        *([f"weights {run.folder / WEIGHTS}"] if (run.folder / WEIGHTS).is_file() else []),
        with_digest(reproduce(run, Path.cwd()), result.digest),
    ]


def _mebibytes(by_rank: Sequence[int]) -> str:
    return " + ".join(f"{size / 2**20:.0f}" for size in by_rank) + " MiB"


def _best_lines(run: FinishedRun) -> list[str]:
    """Return what `--keep-best` and `--patience` did."""
    best, stopped = run.result.best, run.result.stopped
    lines = [f"stopped early: {stopped}"] if stopped else []
    if best is not None:
        lines.append(f"best {best.metric} {best.value:.4f} after {best.steps} steps, weights {run.folder / BEST}")
    return lines


def _spread(count: int) -> list[int]:
    """Return the places of a few of so many values, first and last among them."""
    return sorted({round(i * (count - 1) / (LOSS_ROWS - 1)) for i in range(LOSS_ROWS)}) if count else []
