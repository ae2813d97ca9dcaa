"""What is said of hosts that differ: refused, or remarked, or nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lockstep.strategies.sectioned_step import LARGE, SECTION, SMALL, section_keys
from lockstep.train.same_hosts import apart, refused, remarks
from lockstep.world.addresses import listening_address

SAME: dict[str, Any] = {
    "host": "node1",
    "the version of torch": "2.13.0",
    "the version of lockstep": "0.1",
    "the recipe file": "abc",
    "setup": "{}",
    "time": 100.0,
}


def test_hosts_that_agree() -> None:
    ranks = [SAME, {**SAME, "host": "node2", "time": 100.4}]
    assert refused(ranks) == ""
    assert remarks(ranks) == []
    assert apart(ranks, Path("out")) == ""


@pytest.mark.parametrize("name", ["the version of torch", "the version of lockstep", "the recipe file"])
def test_what_would_train_something_else_is_refused(name: str) -> None:
    text = refused([SAME, SAME, {**SAME, "host": "node2", name: "other"}])
    assert text.startswith(f"{name} differs between hosts: {SAME[name]} for rank 0 on node1, other for rank 2 on node2")


def test_a_clock_and_a_folder_of_its_own_are_said() -> None:
    ranks = [SAME, {**SAME, "host": "node2", "setup": "", "time": 97.5}]
    assert "out is not shared: rank 1 on node2" in apart(ranks, Path("out"))
    (clock,) = remarks(ranks)
    assert "the clock of node2 (rank 1) is 2.5 s behind that of node1" in clock


def test_where_rank_0_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is a loopback address here is another one elsewhere; an address means itself."""
    monkeypatch.setattr("lockstep.world.addresses.resolve", lambda host: {"far": "10.0.0.1"}.get(host, "127.0.1.1"))
    assert listening_address("far") == "10.0.0.1"
    assert listening_address("head") == "0.0.0.0"
    assert listening_address("localhost") == listening_address("127.0.1.1") == "127.0.1.1"


def test_sections_are_filled_from_the_end() -> None:
    """Large weights in the order in which backward completes them, small ones apart, groups apart."""
    sizes = [SECTION, LARGE - 1, LARGE, LARGE, SECTION]
    assert section_keys([0] * 5, sizes, 2) == [(0, 2), (0, SMALL), (0, 2), (0, 2), (0, 1)]
    assert section_keys([0, 1, 1, 0, 0], sizes, 2) == [(0, 2), (1, SMALL), (1, 3), (0, 2), (0, 1)]
