"""Runs another launcher, such as srun, as a command: reads its output, and ends it with this process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from typing import IO, TextIO

from lockstep.launch.parent_death import die_with_parent

GRACE_SECONDS = 5.0
# Variables of an outer launcher, which would be mistaken for those of the inner one.
STALE = frozenset(
    (
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "TORCHELASTIC_RUN_ID",
        "LOCKSTEP_LAUNCHER",
        "LOCKSTEP_RENDEZVOUS",
    )
)


def clean_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment without another launcher's ranks, and with `extra`."""
    return {name: value for name, value in os.environ.items() if name not in STALE} | dict(extra)


def run_command(command: list[str], env: Mapping[str, str], is_own_line: Callable[[str], bool]) -> int:
    """Run a launcher to its end and return its exit code; each line that it prints is passed to `is_own_line`.

    A line for which that returns True is from the launcher itself, and is not repeated; the others are passed on to the
    terminal. The command has its own session, so that Ctrl-C reaches only this process, which then ends it.
    """
    starter = os.getpid()
    process = subprocess.Popen(
        command,
        env=dict(env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: die_with_parent(signal.SIGTERM, starter),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    pairs = ((process.stdout, sys.stdout), (process.stderr, sys.stderr))
    pumps = [threading.Thread(target=_pass_on, args=(*pair, is_own_line), daemon=True) for pair in pairs]
    for pump in pumps:
        pump.start()
    try:
        code = process.wait()
    finally:
        _end(process)
        for pump in pumps:
            pump.join(GRACE_SECONDS)
        process.stdout.close()
        process.stderr.close()
    return code


def _pass_on(source: IO[bytes], sink: TextIO | None, is_own_line: Callable[[str], bool]) -> None:
    """Read a launcher's output to its end, also if nobody can be shown it: a full pipe would stop the ranks."""
    for line in source:
        text = line.decode(errors="replace")
        if not is_own_line(text.rstrip("\n")) and sink is not None:
            with contextlib.suppress(OSError, ValueError):  # closed, full, or without such a character
                sink.write(text)
                sink.flush()


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
