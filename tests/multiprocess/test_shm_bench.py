"""The benchmark runs all its ways and leaves nothing out."""

from __future__ import annotations

from lockstep.bench.collectives import DDP, WAYS, run


def test_every_way_is_measured() -> None:
    rows = run([2], [256, 65536], 1)
    assert {(row.size, row.way) for row in rows if row.way in WAYS} == {(s, w) for s in (256, 65536) for w in WAYS}
    assert {row.way for row in rows} == {*WAYS, *DDP}
    assert all(row.seconds >= row.fastest > 0 for row in rows)
