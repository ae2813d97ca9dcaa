"""Parts of `lockstep bench data` that need no ranks."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from lockstep.bench.ranks.data.building import building, rounds


@pytest.mark.parametrize(("size", "expected"), [(1000, 40), (2**30 // 12, 24), (2**34, 6)])
def test_short_copies_are_repeated_more_often(size: int, expected: int) -> None:
    assert rounds(size, 2) == expected


def test_building_and_copying_are_timed_in_pairs() -> None:
    built, copied = building(torch.zeros(50, 8), 1)
    assert len(built) == len(copied) == rounds(50 * 8 * 4, 1)


@pytest.mark.parametrize("module", ["loader_epochs", "starting"])
def test_what_ranks_import_is_what_they_need(module: str) -> None:
    """Imports are part of a start, so what only the command needs must not be among them."""
    names = ("psutil", "torch._dynamo", "rich", "lockstep.bench.contract")
    code = f"import sys, lockstep.bench.ranks.data.{module}; print([name for name in {names} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
