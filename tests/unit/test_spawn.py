"""Ranks that `spawn` started, seen from their starter."""

from __future__ import annotations

import signal
import subprocess
from types import SimpleNamespace

from lockstep.launch.spawn import ForkedProcess


def test_a_rank_that_ends_while_it_is_signalled() -> None:
    """It was alive a moment ago, and the fork server has collected it since: that is an end, not an error."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    rank = object.__new__(ForkedProcess)
    rank._process = SimpleNamespace(pid=gone.pid, is_alive=lambda: True)  # type: ignore[assignment]
    rank.send(signal.SIGTERM)
