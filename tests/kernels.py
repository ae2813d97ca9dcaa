"""A real IPython kernel that runs cells, and what a front end would show of them."""

from __future__ import annotations

import queue
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from tests.commands import Marked

SECONDS = 180


@dataclass
class Shown:
    """What is below a cell."""

    out: str = ""
    """Of the standard output."""
    err: str = ""
    """Of the standard error."""
    html: list[str] = field(default_factory=list)
    """Displays, each as it was at last."""
    lines: list[str] = field(default_factory=list)
    """Every text that a display had, also those that were replaced."""
    result: str = ""
    """The value of the last expression, as text."""
    error: str = ""
    """The traceback, as shown."""
    kind: str = ""
    """The class of the error."""

    def add(self, kind: str, content: Mapping[str, Any]) -> None:
        if kind == "stream":
            name = "out" if content["name"] == "stdout" else "err"
            setattr(self, name, getattr(self, name) + content["text"])
        elif kind == "error":
            self.error, self.kind = "\n".join(content["traceback"]), content["ename"]
        elif kind == "execute_result":
            self.result = content["data"]["text/plain"]
        elif kind in ("display_data", "update_display_data"):
            self.lines.append(content["data"].get("text/plain", ""))
            if kind == "display_data":
                self.html.append("")
            self.html[-1] = content["data"].get("text/html", "")


class Kernel:
    """A kernel in a folder of its own; a context manager that ends it."""

    def __init__(self, folder: Path, name: str = "python3") -> None:
        self.marked = Marked()
        """Of every process that the kernel starts."""
        self._manager = KernelManager(kernel_name=name)
        # Tests that run in the background ignore Ctrl-C, and a process that they start would, too.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            self._manager.start_kernel(cwd=str(folder), env=self.marked.env)
        finally:
            signal.signal(signal.SIGINT, before)
        self._client: BlockingKernelClient = self._manager.blocking_client()

    def __enter__(self) -> Kernel:
        self._client.start_channels()
        self._client.wait_for_ready(timeout=60)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, t: TracebackType | None) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)
        self._manager.cleanup_resources()

    def run(self, cell: str, *, interrupt_at: str = "", interrupt_after: float = 0.0) -> Shown:
        """Run a cell, and interrupt it as the stop button does: when a text was shown, or after so many seconds."""
        sent, began = self._client.execute(cell), time.monotonic()
        shown, interrupted = Shown(), False
        while time.monotonic() < began + SECONDS:
            due = interrupt_after > 0 and time.monotonic() > began + interrupt_after
            due = due or (interrupt_at != "" and interrupt_at in f"{shown.out}{shown.err}{shown.lines}")
            if due and not interrupted:
                self._manager.interrupt_kernel()
                interrupted = True
            try:
                message = self._client.get_iopub_msg(timeout=0.1)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != sent:
                continue
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return shown
            shown.add(message["msg_type"], message["content"])
        raise AssertionError(f"the cell did not end within {SECONDS} s: {cell}\n{shown}")
