"""How far a comparison is: a live bar on a terminal, plain lines elsewhere; on standard error."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from lockstep.report.wording import shared

if TYPE_CHECKING:
    from types import TracebackType

    from lockstep.train.schema.plan_json import Way


class Display(AbstractContextManager["Display"]):
    """Told of every run; a run's own steps are read from its folder while it goes on."""

    def __init__(self, runs: int, repeats: int) -> None:
        self._runs, self._repeats = runs, repeats
        self._bar: Progress | None = None
        self._refused: list[tuple[str, str]] = []

    def __enter__(self) -> Display:
        if sys.stderr.isatty():
            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.completed:.0f} of {task.total:.0f} runs"),
                Steps(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[last]}"),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task("starting", total=self._runs, folder=None, last="")
        return self

    def begin(self, way: Way, repeat: int, number: int, folder: Path) -> None:
        """Say that a run begins; `number` have been dealt with."""
        text = f"{way.name}, repeat {repeat} of {self._repeats}"
        if self._bar is not None:
            self._bar.update(self._task, description=text, completed=number, folder=folder)
        else:
            self._say(f"{text} ({number + 1} of {self._runs}) ...")

    def done(self, way: Way, repeat: int, step_seconds: float) -> None:
        """Say that it ended well."""
        self._tell(f"{way.name}, repeat {repeat}: {step_seconds * 1000:.1f} ms per step")

    def failed(self, way: Way, repeat: int, why: str) -> None:
        """Say that it did not."""
        self._tell(f"{way.name}, repeat {repeat}: {why}")

    def refused(self, way: Way, why: str) -> None:
        """Say that it cannot run, if any way can: where none can, the error that ends the comparison says it."""
        if self._bar is not None:
            self._tell(f"{way.name}: {why}")
        else:
            self._refused.append((way.name, why))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _tell(self, text: str) -> None:
        if self._bar is not None:
            self._bar.update(self._task, last=text, advance=1)
        else:
            for names, why in shared(self._refused):
                self._say(f"{names}: {why}")
            self._refused.clear()
            self._say(text)

    def _say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)  # noqa: T201 - this is the display


class Steps(ProgressColumn):
    """How many steps the run in progress has done, by the lines of rank 0."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        """Count the lines; the first is a header."""
        folder: Path | None = task.fields["folder"]
        try:
            lines = (folder / "rank-0.jsonl").read_bytes().count(b"\n") if folder else 0
        except OSError:
            lines = 0
        return Text(f"step {lines - 1}" if lines > 1 else "starting")
