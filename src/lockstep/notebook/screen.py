"""Where a cell shows things: standard display and stream protocols only, so any front end that has them will do.

In a kernel (JupyterLab, VS Code, Colab) progress is one line with a bar that is updated, and a report is HTML. In plain
IPython and in Python without it the same is text.
"""

from __future__ import annotations

import html
import sys
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from lockstep.train.progress import Progress

if TYPE_CHECKING:
    from types import TracebackType


class Screen:
    """Text: a terminal, or the output of a program."""

    def write(self, text: str, *, error: bool = False) -> None:
        """Pass on what a worker printed."""
        stream = sys.stderr if error else sys.stdout
        stream.write(text)
        stream.flush()

    def progress(self, steps: int, *, label: str, first: int) -> Progress:
        """Return what shows how far a run is."""
        return Progress(steps, label=label, shown=True, first=first)

    def status(self) -> Status:
        """Return a line that says what is being done."""
        return Status()

    def show(self, text: str, markup: str) -> None:
        """Show a report as text, or as HTML."""
        self.write(text)


class Status(AbstractContextManager["Status"]):
    """What is being done: lines."""

    def say(self, text: str) -> None:
        """Say what is being done now."""
        print(text, file=sys.stderr, flush=True)  # noqa: T201 - this is the display

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Say nothing more."""


class KernelScreen(Screen):
    """The output of a cell, of a kernel that a front end talks to."""

    def progress(self, steps: int, *, label: str, first: int) -> Progress:
        """Return a bar that is updated in its place."""
        return KernelProgress(steps, label=label, first=first)

    def status(self) -> Status:
        """Return a line that is updated in its place."""
        return KernelStatus()

    def show(self, text: str, markup: str) -> None:
        """Show HTML, with the text for front ends that have none."""
        _display({"text/html": markup, "text/plain": text})


class KernelProgress(Progress):
    """How far a run is, in one output that is updated."""

    seconds_between_lines = 0.2

    def __init__(self, steps: int, *, label: str, first: int) -> None:
        super().__init__(steps, label=label, shown=True, first=first)
        self._handle: Any = None

    def __enter__(self) -> KernelProgress:
        super().__enter__()
        self._bar = None  # a kernel that was started from a terminal has one, and nobody looks at it
        self._handle = _display(_bar(f"{self._label}: starting", self._first, self._steps), new=True)
        return self

    def show(self, line: str) -> None:
        """Put a line in place of the last one."""
        self._handle.update(_bar(line, self._done, self._steps), raw=True)


class KernelStatus(Status):
    """What is being done, in one output that is updated."""

    def __init__(self) -> None:
        self._handle: Any = None

    def say(self, text: str) -> None:
        """Put a line in place of the last one."""
        content = {"text/plain": text, "text/html": f"<code>{html.escape(text)}</code>"}
        if self._handle is None:
            self._handle = _display(content, new=True)
        else:
            self._handle.update(content, raw=True)


def _bar(line: str, done: int, steps: int) -> dict[str, str]:
    bar = f'<progress value="{done}" max="{steps}" style="vertical-align: middle"></progress>'
    return {"text/plain": line, "text/html": f"{bar} <code>{html.escape(line)}</code>"}


def _display(content: dict[str, str], *, new: bool = False) -> Any:
    from IPython.display import display

    return display(content, raw=True, display_id=new or None)  # type: ignore[no-untyped-call]


def this_screen() -> Screen:
    """Return the screen of the cell, or of the program, that runs now."""
    if "IPython" in sys.modules:
        from IPython import get_ipython

        if getattr(get_ipython(), "kernel", None) is not None:
            return KernelScreen()
    return Screen()
