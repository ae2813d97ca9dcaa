"""A rank that ends at once has said what it had to say, and leaves nothing that Python would report as leaked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import multiprocessing, os, sys
from lockstep.launch.process_exit import exit_now

def rank(how):
    lock = multiprocessing.get_context("forkserver").RLock()  # as tqdm makes one
    print("said", end="")
    exit_now(3) if how == "exit_now" else os._exit(3)

if __name__ == "__main__":
    process = multiprocessing.get_context("forkserver").Process(target=rank, args=(sys.argv[1],))
    process.start()
    process.join()
    sys.exit(process.exitcode)
"""


@pytest.mark.parametrize(("how", "leaks", "said"), [("exit_now", False, "said"), ("os._exit", True, "")])
def test_no_semaphore_is_left(how: str, leaks: bool, said: str, tmp_path: Path) -> None:
    """The second case is what `exit_now` is for: without it the first would prove nothing."""
    script = tmp_path / "ends.py"
    script.write_text(SCRIPT)
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run([sys.executable, str(script), how], env=buffered, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert ("leaked semaphore objects" in done.stderr) == leaks
    assert done.stdout == said
