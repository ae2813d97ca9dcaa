"""Running somebody else's launcher as a command: its words are read, its end is ours."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from typing import IO, TextIO

from lockstep.launch.parent_death import die_with_parent

GRACE_SECONDS = 5.0
# What an outer launcher left in the environment would be taken for the inner one's word.
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


def run_command(command: list[str], env: Mapping[str, str], heard: Callable[[str], bool]) -> int:
    """Run a launcher to its end and return its exit code; each line that it prints goes to `heard`.

    A line for which `heard` returns True is the launcher's own chatter, understood and not repeated; the
    others are passed on. The command has a session of its own, so that Ctrl-C reaches only us, and we end it.
    """
    process = subprocess.Popen(
        command,
        env=dict(env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: die_with_parent(signal.SIGTERM),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    pairs = ((process.stdout, sys.stdout), (process.stderr, sys.stderr))
    pumps = [threading.Thread(target=_pass_on, args=(*pair, heard), daemon=True) for pair in pairs]
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


def _pass_on(source: IO[bytes], sink: TextIO, heard: Callable[[str], bool]) -> None:
    for line in source:
        text = line.decode(errors="replace")
        if not heard(text.rstrip("\n")):
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
