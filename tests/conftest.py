"""What every test gets: the real services, the system mark, and a check that nothing is left behind."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.services import mpich, openmpi, slurm

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["mpich", "openmpi", "slurm"]

LEFTOVER_SECONDS = 10.0
SEGMENTS = ("lockstep", "torch_", "psm_")  # ours, torch's and Python's; other programs may come and go
SERVICED = ("test_launchers.py", "test_ends.py", "test_bad_input.py", "test_scripts.py")
DAEMONS = ("munged", "slurm")  # kept for the whole session, and ended with it


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need a real service, and keep what shares something together when two run at once.

    A file's tests share its pool of ranks. All tests that use the services share these: the services are started once.
    """
    for item in items:
        system = Path(__file__).parent / "system" in item.path.parents
        if system:
            item.add_marker(pytest.mark.system)
        services = system or item.path.name in SERVICED
        item.add_marker(pytest.mark.xdist_group("services" if services else str(item.path)))


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail a test that leaves a process, a thread or a named segment."""
    before = _traces()
    yield
    deadline = time.monotonic() + LEFTOVER_SECONDS
    while (left := _traces() - before) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left, f"left behind: {sorted(left)}"


def _traces() -> set[str]:
    found = {f"thread {thread.name}" for thread in threading.enumerate() if not thread.daemon}
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if child.name().startswith(DAEMONS):
                continue
            found.add(f"process {child.pid} {' '.join(child.cmdline())[:80]}")
    found |= {f"segment {path.name}" for path in Path("/dev/shm").glob("*") if path.name.startswith(SEGMENTS)}
    return found
