"""Processes that end with another, also if it ended before the kernel was asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from lockstep.launch.parent_death import PARENT, parent_in

LEFT = "from lockstep.launch.parent_death import die_with_parent; die_with_parent(parent={parent}); print('goes on')"
HANGUP = """
import os, signal
from lockstep.launch.parent_death import signal_at_hangup
reader, writer = os.pipe()
if {closed}: os.close(writer)
signal_at_hangup(reader, signal.SIGUSR1)
print("before", flush=True)
os.close(writer)
print("after", flush=True)
"""


def run(code: str) -> tuple[int, list[str]]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert not done.stderr
    return done.returncode, done.stdout.split()


def test_a_child_of_another_parent_was_left_behind() -> None:
    assert run(LEFT.format(parent=os.getpid())) == (0, ["goes", "on"])
    assert run(LEFT.format(parent=os.getpid() + 1)) == (-signal.SIGKILL, [])


def test_the_kernel_signals_when_a_pipe_is_closed() -> None:
    assert run(HANGUP.format(closed=False)) == (-signal.SIGUSR1, ["before"])


def test_a_pipe_that_was_closed_before_is_noticed() -> None:
    assert run(HANGUP.format(closed=True)) == (-signal.SIGUSR1, [])


@pytest.mark.parametrize(("text", "parent"), [("12", 12), ("", None), ("x", None)])
def test_the_parent_is_taken_out_of_the_environment(text: str, parent: int | None) -> None:
    environ = {PARENT: text, "HOME": "/"}
    assert parent_in(environ) == parent
    assert environ == {"HOME": "/"}
