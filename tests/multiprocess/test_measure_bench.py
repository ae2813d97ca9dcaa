"""The benchmark of measuring times both sides of every strategy."""

from __future__ import annotations

from lockstep.bench.measure import run, table


def test_both_sides_are_timed() -> None:
    (row,) = run(2, ("single",))
    assert (row.strategy, row.workers) == ("single", 1)
    assert row.measured > 0.0
    assert row.plain > 0.0
    assert row.spread[0] <= row.cost <= row.spread[1]
    assert table([row]).row_count == 1
