"""How far a run is: a bar on a terminal, plain lines elsewhere, nothing when not wanted."""

from __future__ import annotations

import sys
import time
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

    from rich.progress import Progress as Bar
    from rich.progress import TaskID

SECONDS_BETWEEN_LINES = 5.0


class Progress(AbstractContextManager["Progress"]):
    """Shown by rank 0, on standard error, so that standard output stays for results."""

    def __init__(self, steps: int, *, label: str, shown: bool) -> None:
        self._steps, self._label, self._shown = steps, label, shown
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._spoke = 0.0

    def __enter__(self) -> Progress:
        if self._shown and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("loss {task.fields[loss]}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task(self._label, total=self._steps, loss="-")
        return self

    def step(self, done: int, loss: float) -> None:
        """Say that so many steps are done."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, loss=f"{loss:.4f}")
            return
        now = time.monotonic()
        if self._shown and (done == self._steps or now - self._spoke > SECONDS_BETWEEN_LINES):
            self._spoke = now
            print(f"{self._label}: step {done}/{self._steps}, loss {loss:.4f}", file=sys.stderr, flush=True)  # noqa: T201

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
