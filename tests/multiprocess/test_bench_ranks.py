"""What ranks of `lockstep bench ddp` measure, for the plans that only a full run has: pairs, and memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lockstep.bench.bench_ddp import BASE, DROP_IN, IN_TURN, OURS, TREE, WEIGHED
from lockstep.bench.ranks.ddp_rank import measure
from lockstep.bench.ranks.rank import PHASES, leave
from tests.ranks import Ranks


def measured(rank: int, size: int, plan: dict[str, Any], folder: str) -> Any:
    """Be one rank, as `serve` is, in a process that has imported torch already."""
    result = measure({**plan, "rank": rank, "workers": size, "folder": folder, PHASES: None})
    leave()
    return result


@pytest.mark.parametrize("ways", [(BASE, DROP_IN), (IN_TURN, TREE)], ids=["drop-in", "exact"])
def test_pairs_take_turns(ways: tuple[str, str], tmp_path: Path) -> None:
    plan = {"model": "500 small tensors", "turns": 1, "ways": list(ways), "start": 1}
    with Ranks(2, backend="") as ranks:
        first, last = ranks.run(measured, plan, str(tmp_path))
    assert list(first["seconds"]) == list(ways)[::-1], "every second start makes them the other way round"
    assert {len(samples) for samples in first["seconds"].values()} == {2}
    assert first == last, "the slowest rank's seconds, on every rank"


@pytest.mark.parametrize("way", WEIGHED)
def test_memory_of_all_ranks(way: str, tmp_path: Path) -> None:
    plan = {"model": "mlp", "ways": [way], "memory": True}
    with Ranks(2, backend="") as ranks:
        first, last = ranks.run(measured, plan, str(tmp_path))
    assert first == last
    assert first["memory"] > 6.5e6 * 4, f"{way}: the weights alone need more; {OURS} has them once"
