"""The registry: built-in descriptions, entry points, names that are taken, and packages that are damaged."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from lockstep.errors import BadInput
from lockstep.launch import find as find_launcher
from lockstep.registry import (
    BASELINE,
    DEFAULT,
    LAUNCHERS,
    PEERS,
    STRATEGIES,
    Description,
    Registry,
    StrategyDescription,
    describe,
    described,
)
from lockstep.registry.base import import_object
from tests.toy import write_metadata

SOURCE = Path(__file__).parents[2] / "src" / "lockstep"


def registry(beside: Registry[StrategyDescription] | None = None) -> Registry[StrategyDescription]:
    """Return a registry that reads the path as it is now."""
    return Registry(
        "strategy",
        StrategyDescription,
        value="STRATEGY",
        modules=("lockstep.strategies.single", "lockstep.strategies.ddp"),
        group="lockstep.strategies",
        beside=beside,
    )


def install(
    site: Path, monkeypatch: pytest.MonkeyPatch, points: Mapping[str, str], code: str = "", package: str = "outside"
) -> None:
    """Put a package with these entry points, and one module of this code, on the path."""
    write_metadata(site, package, {"lockstep.strategies": points})
    (site / f"{package}.py").write_text(code)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delitem(sys.modules, package, raising=False)


MINE = """
from lockstep.registry import StrategyDescription
STRATEGY = StrategyDescription(name="mine", help="mine", implementation="outside:Mine")
"""


def test_every_description_is_whole() -> None:
    """Names are unique, help is one line, and what is described is there."""
    everything: list[Description] = [*STRATEGIES.all(), *PEERS.all(), *LAUNCHERS.all()]
    for one in everything:
        assert one.help == one.help.strip().rstrip(".")
        assert "\n" not in one.help
    for strategy in STRATEGIES.all():
        assert import_object(strategy.implementation).__name__
    for launcher in LAUNCHERS.all():
        assert import_object(launcher.implementation).__name__
    for peer in PEERS.all():
        assert (SOURCE.parent / Path(*peer.program.split("."))).with_suffix(".py").is_file()
        assert peer.launcher is None or peer.launcher in LAUNCHERS
    assert not set(STRATEGIES.names()) & set(PEERS.names())
    assert {BASELINE, DEFAULT} <= set(STRATEGIES.names())


def test_describing_imports_no_torch() -> None:
    check = (
        "from lockstep.registry import *; [*STRATEGIES.all(), *PEERS.all(), *LAUNCHERS.all()]; import sys; "
        "sys.exit(bool({'torch', 'lightning', 'accelerate'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_what_strategies_say_of_workers() -> None:
    single, dp, stock = (STRATEGIES.get(name) for name in ("single", "dp", "torch-ddp"))
    assert (single.workers(4), single.processes(1), dp.workers(4), dp.processes(4)) == (1, 1, 4, 1)
    assert stock.processes(4) == 4
    with pytest.raises(BadInput, match="strategy single trains on one worker, and there are 2: use --workers 1"):
        single.check_workers(2)
    with pytest.raises(BadInput, match="strategy torch-ddp needs at least 2 workers: use --workers 2, or strategy si"):
        stock.check_workers(1)
    with pytest.raises(BadInput, match="strategy dp needs one process with a thread per worker, and there are 2 proc"):
        dp.check_workers(2, 2)
    stock.check_workers(2, 2)


def test_a_name_is_found_among_strategies_and_peers() -> None:
    assert describe("ddp") is STRATEGIES.get("ddp")
    assert describe("lightning") is PEERS.get("lightning")
    assert described("of another machine") is None
    with pytest.raises(BadInput, match="no strategy called 'lightening'; did you mean 'lightning'"):
        describe("lightening")
    with pytest.raises(BadInput, match="no launcher called 'slurm'"):
        find_launcher("slurm", 2)
    with pytest.raises(BadInput, match="launcher inline runs one worker, found 2: use --launcher spawn"):
        find_launcher("inline", 2)


def test_an_entry_point_is_found_after_the_built_in_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, {"mine": "outside:STRATEGY"}, MINE)
    found = registry()
    assert found.names() == ["single", "ddp", "mine"]
    assert "outside" not in sys.modules, "it is loaded when it is asked for by name"
    assert found.get("mine").implementation == "outside:Mine"
    assert found.get("mine").unavailable() is None


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import nowhere", "cannot be loaded (ModuleNotFoundError: No module named 'nowhere'): repair or uninstall"),
        ("import sys; sys.exit(3)", "cannot be loaded (SystemExit: 3)"),
        ("", "cannot be loaded (AttributeError: module 'outside' has no attribute 'STRATEGY')"),
        ("STRATEGY = 3", "is of type int, not StrategyDescription"),
        (MINE.replace('name="mine"', 'name="yours"'), "calls itself 'yours': its entry point must have that name"),
    ],
)
def test_a_damaged_package_is_a_row_with_its_reason(
    code: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, {"mine": "outside:STRATEGY"}, code)
    found = registry()
    assert found.get("single").unavailable() is None
    told = found.get("mine").unavailable() or ""
    assert told.startswith("strategy 'mine' of package outside 1.0 (outside:STRATEGY) ")
    assert reason in told


def test_a_name_that_two_packages_give_is_refused_with_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "one", monkeypatch, {"mine": "outside:STRATEGY"}, MINE)
    install(tmp_path / "two", monkeypatch, {"mine": "other:STRATEGY"}, MINE, package="other")
    told = registry().get("mine").unavailable() or ""
    assert "is given twice, by package" in told
    assert "package outside 1.0 (outside:STRATEGY)" in told
    assert "package other 1.0 (other:STRATEGY)" in told


def test_a_built_in_name_cannot_be_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, {"ddp": "outside:STRATEGY", "mine": "outside:STRATEGY"}, MINE)
    found = registry()
    assert found.get("ddp").implementation == "lockstep.strategies.ddp.strategy:DDP"
    assert found.names() == ["single", "ddp", "mine"]
    taken = "is not used: a built-in strategy has that name; give it another one"
    assert found.refused() == [f"strategy 'ddp' of package outside 1.0 (outside:STRATEGY) {taken}"]
    assert registry(beside=found).names() == ["single", "ddp"], "mine is one of the registry beside it"
