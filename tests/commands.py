"""Running commands as a user does, and finding what they left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

RECIPES = Path(__file__).parent / "recipes"
TINY = str(RECIPES / "tiny.py")
BIN = Path(sys.executable).parent
LOCKSTEP = str(BIN / "lockstep")
SECONDS = 180
LAUNCHER_PREFIXES = ("SLURM", "OMPI_", "PMI", "MPI_", "TORCHELASTIC", "LOCKSTEP_")
LAUNCHER_NAMES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "OMP_NUM_THREADS",
)
DONT_COMPILE = "PYTHONDONTWRITEBYTECODE"
"""Few users set it, and with it, code that was compiled before an edit is never met."""


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return f"exit code {self.code}\n{self.out}\n{self.err}"


def _as_from_a_terminal() -> None:
    """Let signals do what they do: where tests run in the background or under nohup, some are ignored, and stay so."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


class Marked:
    """An environment that every process started from it carries, so that survivors can be found."""

    def __init__(self, extra: Mapping[str, str] | None = None) -> None:
        self.mark = uuid.uuid4().hex
        self.env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(LAUNCHER_PREFIXES) and name not in (*LAUNCHER_NAMES, DONT_COMPILE)
        }
        self.env |= {"LOCKSTEP_TEST_MARK": self.mark, **(extra or {})}

    def start(self, command: Sequence[str], cwd: Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            env=self.env,
            cwd=cwd,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=_as_from_a_terminal,
        )

    def run(self, command: Sequence[str], cwd: Path, seconds: float = SECONDS) -> Done:
        return finish(self.start(command, cwd), seconds)

    def survivors(self, seconds: float = 10.0) -> list[str]:
        """Return the processes that still carry the mark, after giving them time to end."""
        deadline = time.monotonic() + seconds
        while (carriers := self._carriers()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return carriers

    def _carriers(self) -> list[str]:
        carriers = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("LOCKSTEP_TEST_MARK") == self.mark:
                    carriers.append(f"{process.pid} {' '.join(process.cmdline())}")
        return carriers


def finish(process: subprocess.Popen[str], seconds: float = SECONDS) -> Done:
    """Wait for a command and return how it ended; a hang is a failure with its output."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"no end after {seconds} s: {process.args!r}\n{out}\n{err}") from None
    return Done(process.returncode, out, err)


class CommandLine:
    """`lockstep` in a test's own folder: called in this process, or `apart`, in a process of its own as a user has it.

    In this process torch is imported already, so it is quick. Workers are forked from the process that `tests.ranks`
    warms, and what they say is not in the result.
    """

    def __init__(self, cwd: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
        self._cwd = cwd
        self._monkeypatch = monkeypatch
        self._capfd = capfd

    def __call__(self, *arguments: str, env: Mapping[str, str] | None = None) -> Done:
        """Run the command line in this process; folder and environment stay so until the test's end."""
        from lockstep.cli import main

        for name in list(os.environ):
            if name.startswith(LAUNCHER_PREFIXES) or name in LAUNCHER_NAMES:
                self._monkeypatch.delenv(name)
        for name, value in (env or {}).items():
            self._monkeypatch.setenv(name, value)
        self._monkeypatch.chdir(self._cwd)
        self._monkeypatch.setattr(sys, "argv", ["lockstep", *arguments])
        before = signal.getsignal(signal.SIGTERM)
        try:
            with pytest.raises(SystemExit) as ended:
                main()
        finally:
            signal.signal(signal.SIGTERM, before)
        out, err = self._capfd.readouterr()
        return Done(int(ended.value.code or 0), out, err)

    def apart(self, *arguments: str, env: Mapping[str, str] | None = None) -> Done:
        """Run the command line in a process of its own."""
        return Marked(env).run([LOCKSTEP, *arguments], self._cwd)
