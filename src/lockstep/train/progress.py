"""How far a run is: a bar on a terminal, plain lines elsewhere, nothing when not wanted."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

    from rich.progress import Progress as Bar
    from rich.progress import TaskID


class Progress(AbstractContextManager["Progress"]):
    """Shown by rank 0, on standard error, so that standard output stays for results.

    `first` is the number of steps that were done before: where the checkpoint of a resumed run stood.
    """

    seconds_between_lines = 5.0

    def __init__(self, steps: int, *, label: str, shown: bool, first: int = 0) -> None:
        self._steps, self._label, self._shown, self._first = steps, label, shown, first
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._began = self._spoke = 0.0
        self._said = -1
        self._done, self._loss, self._metrics = first, 0.0, ""

    def __enter__(self) -> Progress:
        self._began = time.monotonic()
        if self._shown and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("loss {task.fields[loss]}{task.fields[metrics]}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task(
                self._label, total=self._steps, completed=self._first, loss="-", metrics=self._metrics
            )
        return self

    def step(self, done: int, loss: float) -> None:
        """Say that so many steps are done; of the last one the end says it, with what was evaluated after it."""
        self._done, self._loss = done, loss
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, loss=f"{loss:.4f}")
        elif self._shown and done != self._steps and time.monotonic() - self._spoke > self.seconds_between_lines:
            self._say()

    def evaluated(self, metrics: Mapping[str, float], note: str = "") -> None:
        """Say what the evaluation after the last step returned; it stays in the line until the next one."""
        shown = [*(f"{name} {value:.4f}" for name, value in metrics.items()), *([note] if note else [])]
        self._metrics = f"; evaluation: {', '.join(shown)}"
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, metrics=self._metrics)
        elif self._shown:
            self._say()

    def _say(self) -> None:
        """Show the line that a bar would show."""
        self._spoke, self._said = time.monotonic(), self._done
        left = time_left(self._done - self._first, self._steps - self._done, self._spoke - self._began)
        self.show(f"{self._label}: step {self._done}/{self._steps}, loss {self._loss:.4f}{left}{self._metrics}")

    def show(self, line: str) -> None:
        """Show a line."""
        print(line, file=sys.stderr, flush=True)  # noqa: T201

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._shown and error is None and self._said != self._done:
            self._say()


def time_left(done: int, remaining: int, elapsed: float) -> str:
    """Return how long the remaining steps take if they are as slow as those done, in words; empty at the end."""
    if done < 1 or remaining < 1:
        return ""
    seconds = round(elapsed / done * remaining)
    hours, minutes = seconds // 3600, seconds % 3600 // 60
    if hours:
        return f", {hours} h {minutes} min left"
    return f", {minutes} min {seconds % 60} s left" if minutes else f", {seconds} s left"
