"""Ranks that `spawn` started, seen from their starter."""

from __future__ import annotations

import signal
import subprocess
import sys
from types import SimpleNamespace

from lockstep.launch.spawn import ForkedProcess


def test_a_rank_that_ends_while_it_is_signalled() -> None:
    """It was alive a moment ago, and the fork server has collected it since: that is an end, not an error."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    rank = object.__new__(ForkedProcess)
    rank._process = SimpleNamespace(pid=gone.pid, is_alive=lambda: True)  # type: ignore[assignment]
    rank.send(signal.SIGTERM)


STARTS = """
import os, signal, subprocess, sys
from lockstep.launch.spawn import ctrl_c_later

signal.signal(signal.SIGINT, signal.default_int_handler)  # also where this test runs in the background
child = "import signal; print('ignored', signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
try:
    with ctrl_c_later():
        os.kill(os.getpid(), signal.SIGINT)
        subprocess.run([sys.executable, "-c", child], check=True)
    print("lost")
except KeyboardInterrupt:
    blocked = signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    print("noticed", signal.getsignal(signal.SIGINT) is signal.default_int_handler, blocked)
"""


def test_ctrl_c_while_the_server_is_started_is_noticed() -> None:
    """It was lost: on a busy machine a run went on to its end."""
    done = subprocess.run([sys.executable, "-c", STARTS], capture_output=True, text=True, check=True)
    assert done.stdout == "ignored True\nnoticed True False\n", done.stderr
