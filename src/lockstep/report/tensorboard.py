"""The runs as TensorBoard event files, a folder for each; needs the extra `tensorboard`, and no torch."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.train.event_file import EventFile, check_tensorboard

if TYPE_CHECKING:
    from lockstep.report.collect import FinishedRun
    from lockstep.report.compare import Comparison


def write(comparison: Comparison, folder: Path) -> list[Path]:
    """Write the event files of every run; return their folders."""
    check_tensorboard()
    made = []
    for name, runs in comparison.runs.items():
        for repeat, run in enumerate(runs, start=1):
            made.append(folder / f"{re.sub(r'[^A-Za-z0-9_.]+', '-', name)}-{repeat}")
            _write_run(run, made[-1])
    return made


def _write_run(run: FinishedRun, folder: Path) -> None:
    with contextlib.closing(EventFile(folder)) as file:
        for step, when, values in scalars(run):
            file.add(step, values, when)


def scalars(run: FinishedRun) -> Iterator[tuple[int, float, dict[str, float]]]:
    """Yield step, time and named values: the loss of all ranks, the time of a step by rank and part, the metrics."""
    steps = list(zip(*run.steps, strict=True))
    evaluated = {line.steps - 1: line.metrics for line in run.evaluations}
    for ranks, loss in zip(steps, run.losses[-len(steps) :], strict=False):
        values = {"loss": loss}
        for rank, line in enumerate(ranks):
            values[f"step_seconds/rank_{rank}"] = line.total
            values |= {f"{part}_seconds/rank_{rank}": seconds for part, seconds in (line.seconds or {}).items()}
            if line.memory is not None:
                values[f"memory/rank_{rank}"] = float(line.memory)
        metrics = evaluated.get(ranks[0].step, {})
        values |= {f"evaluation/{name}": value for name, value in metrics.items() if value is not None}
        yield ranks[0].step, ranks[0].began, values
