"""Parts of `lockstep bench data` that need no ranks."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from lockstep.bench.data import _goal
from lockstep.bench.ranks.data.building import building, rounds


@pytest.mark.parametrize(("size", "expected"), [(1000, 40), (2**30 // 12, 24), (2**34, 6)])
def test_short_copies_are_repeated_more_often(size: int, expected: int) -> None:
    assert rounds(size, 2) == expected


def test_building_and_copying_are_timed_in_pairs() -> None:
    built, copied = building(torch.zeros(50, 8), 1)
    assert len(built) == len(copied) == rounds(50 * 8 * 4, 1)
    assert min(built + copied) > 0


def test_a_ratio_is_the_median_of_pairs_with_their_middle_half() -> None:
    found = _goal("ours / theirs", [1, 2, 3, 4, 50], [1, 1, 1, 1, 10], 3.0)
    assert (found.ratio, found.spread) == (3, (2, 4))


def test_a_process_that_only_reads_starts_without_what_builders_need() -> None:
    code = (
        "import sys, lockstep.bench.ranks.data.reading; print('psutil' in sys.modules, 'torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["False", "False"]
