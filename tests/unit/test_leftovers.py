"""The check that nothing is left behind: it finds a leak, and leaves alone what belongs to another xdist worker."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import psutil
import pytest

from tests.leftovers import SHM, relatives, traces, used

HOLDS = """
import mmap, sys
with open(sys.argv[1], "x+b") as file:
    file.truncate(4096)
    memory = mmap.mmap(file.fileno(), 4096)
print("mapped", flush=True)
sys.stdin.read()  # until the test has ended, however it did
"""


@pytest.fixture
def holder() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Yield the name of a segment and the process that made and maps it."""
    name = f"psm_leftovers_{os.getpid()}"
    command = [sys.executable, "-c", HOLDS, str(SHM / name)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "mapped\n"
            yield name, process
        finally:
            process.kill()
            (SHM / name).unlink(missing_ok=True)


@pytest.mark.parametrize("worker", [None, "gw0"])
def test_own_leaks_are_found(
    holder: tuple[str, subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch, worker: str | None
) -> None:
    name, process = holder
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    if worker:
        monkeypatch.setenv("PYTEST_XDIST_WORKER", worker)
    going = threading.Event()
    thread = threading.Thread(target=going.wait, name="left")
    thread.start()
    found = traces()
    going.set()
    thread.join()
    assert {f"segment {name}", "thread left"} <= found
    assert any(one.startswith(f"process {process.pid} ") for one in found)
    process.kill()
    process.wait()
    assert f"segment {name}" in traces(), "its maker is gone, and it is still there"


def test_what_another_worker_uses_is_left_alone(holder: tuple[str, subprocess.Popen[str]]) -> None:
    name, process = holder
    other = psutil.Process(process.pid)
    assert used({name, "psm_none"}, [other]) == {name}
    assert used({name}, [psutil.Process()]) == set()
    process.kill()
    process.wait()
    assert used({name}, [other]) == set(), "nobody uses it any more: a leak"


def test_relatives_are_the_other_workers_and_theirs() -> None:
    script = "(sleep 60; true) & (sleep 60; true) & echo started; wait"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout
        shell.stdout.readline()
        parent = psutil.Process(shell.pid)
        while len(every := parent.children(recursive=True)) < 4:
            pass
        try:
            one, other = parent.children()
            assert set(relatives(one)) == {other, *other.children()}
            assert set(relatives(other)) == {one, *one.children()}
        finally:
            for process in every:
                process.kill()
