"""What the errors of the wrapper say, without ranks."""

from __future__ import annotations

import subprocess
import sys

from lockstep.nn.ddp_checks import first_difference
from lockstep.nn.missing_gradients import MISSING, NO_DATA, PRESENT, describe


def test_missing_gradients_are_named_with_their_ranks() -> None:
    rows = [[PRESENT, MISSING, MISSING], [MISSING, MISSING, PRESENT], [NO_DATA, NO_DATA, NO_DATA]]
    text = describe(["a", "b", "c"], rows, [4, 5, 6])
    assert "3 parameters got no gradient in this backward: a (rank 5), b (every rank), c (rank 4). " in text


def test_a_long_list_is_cut() -> None:
    names = [f"p{i}" for i in range(20)]
    text = describe(names, [[MISSING] * 20, [PRESENT] * 20], [0, 1])
    assert "p7 (rank 0) and 12 more." in text


def test_the_first_difference_is_named_with_both_sides() -> None:
    text = first_difference([["a", "b", "c"], ["a", "b", "c"], ["a", "b"]], [0, 2, 4])
    assert "rank 0 has c; rank 4 has nothing more" in text


def test_parts_are_there_after_import_lockstep() -> None:
    check = (
        "import lockstep, sys; assert 'torch' not in sys.modules; "
        "lockstep.nn.DistributedDataParallel; lockstep.data.Ragged; lockstep.nn.SyncBatchNorm"
    )
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
