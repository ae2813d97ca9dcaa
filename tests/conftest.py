"""What every test gets: the command line, real services, the system mark, and a check that nothing is left behind."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from tests.commands import CommandLine
from tests.leftovers import traces
from tests.services import mpich, openmpi, slurm, tensorflow_python

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["mpich", "openmpi", "slurm", "tensorflow_python"]

# No test asserts a time, and a drawn example is no exception: a busy machine is no fault.
settings.register_profile("lockstep", deadline=None)
settings.load_profile("lockstep")

LEFTOVER_SECONDS = 10.0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="also run the tests marked soak, see scripts/soak-tests")
    parser.addoption(
        "--thinner",
        action="store_true",
        help="of the tests marked thinned, run half of the first value's, and fewer of the others': elsewhere all run",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Thin out what is tried in many combinations, and mark the tests that need a real service."""
    for item in items:
        _thin_out(item, thinner=config.getoption("--thinner"))
    if not config.getoption("--soak"):
        soak = {item for item in items if item.get_closest_marker("soak")}
        config.hook.pytest_deselected(items=list(soak))
        items[:] = [item for item in items if item not in soak]
    for item in items:
        if Path(__file__).parent / "system" in item.path.parents:
            item.add_marker(pytest.mark.system)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Say which tests stay together where several processes run them."""
    from tests.dealing_out import TogetherByFile

    return TogetherByFile(config, log)


def _thin_out(item: pytest.Item, *, thinner: bool) -> None:
    """Leave some combinations of parameters to the soak: every value of each still runs, with several of the others.

    `thinner`: on another torch or device, where that is not asked of every value.
    """
    thinned = item.get_closest_marker("thinned")
    if thinned is None or not isinstance(item, pytest.Function):
        return
    first, every = thinned.args
    places = item.callspec.indices
    others, own = (5 * every, 2) if thinner else (every, 1)
    if sum(places.values()) % (others if places[first] else own):
        item.add_marker(pytest.mark.soak)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line in the test's own folder: `cli("run", "mlp")`, or `cli.apart(...)` in a process of its own."""
    return CommandLine(tmp_path, monkeypatch, capfd)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail a test that leaves a process, a thread or a named segment."""
    before = traces()
    yield
    deadline = time.monotonic() + LEFTOVER_SECONDS
    while (left := traces() - before) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left, f"left behind: {sorted(left)}"
