"""Ranks that `spawn` started, seen from their starter."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from lockstep.launch.spawn import ForkedProcess, ctrl_c_later


def test_a_rank_that_ends_while_it_is_signalled() -> None:
    """It was alive a moment ago, and the fork server has collected it since: that is an end, not an error."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    rank = object.__new__(ForkedProcess)
    rank._process = SimpleNamespace(pid=gone.pid, is_alive=lambda: True)  # type: ignore[assignment]
    rank.send(signal.SIGTERM)


def test_ctrl_c_while_the_server_is_started_is_noticed() -> None:
    """It was lost: on a busy machine a run went on to its end."""
    lines = []
    with pytest.raises(KeyboardInterrupt), ctrl_c_later():
        os.kill(os.getpid(), signal.SIGINT)
        child = "import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
        lines.append(subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True).stdout)
    assert lines == ["True\n"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
