"""Mixed collectives over four ranks end with no mismatch and no leak; scripts/soak-collectives runs the long one."""

from __future__ import annotations

from tests.multiprocess.soak import mixed
from tests.ranks import Ranks

STEPS = 3_000


def test_mixed_collectives_leak_nothing() -> None:
    with Ranks(4) as ranks:
        weights = ranks.run(mixed, 1, STEPS)
    for early, late in weights:
        assert late.descriptors == early.descriptors
        assert late.threads == early.threads
        assert late.resident < early.resident + 50 * 2**20
