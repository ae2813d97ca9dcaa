"""Nothing in a segment overlaps, and slices cover every element once."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.comm.arena import owned_slice
from lockstep.comm.large import part_of
from lockstep.comm.libc import SEMAPHORE_BYTES
from lockstep.comm.segment_layout import CELLS, NOTICE_BYTES, PAGE, TOKEN_BYTES, SegmentLayout
from lockstep.comm.wire import SIGNATURE_BYTES


def regions(layout: SegmentLayout) -> list[tuple[int, int]]:
    ranks = range(layout.size)
    pairs = [(s, t) for s in ranks for t in ranks]
    found = [(0, TOKEN_BYTES)]
    found += [(layout.arrived(s, t), SEMAPHORE_BYTES) for s, t in pairs]
    found += [(layout.notice(r), NOTICE_BYTES) for r in ranks]
    found += [(layout.doorbell(r), SEMAPHORE_BYTES) for r in ranks]
    found += [(layout.signature(r, p), SIGNATURE_BYTES) for r in ranks for p in (0, 1)]
    found += [(layout.outbox(r, p), layout.outbox_bytes) for r in ranks for p in (0, 1)]
    found += [(layout.channel(s, t), PAGE + CELLS * layout.cell_bytes) for s, t in pairs]
    return sorted(found)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 16, 64])
def test_regions_do_not_overlap_and_fill_the_segment(size: int) -> None:
    layout = SegmentLayout(size)
    found = regions(layout)
    for (start, length), (following, _) in pairwise(found):
        assert start + length <= following
    assert sum(found[-1]) == layout.total


@pytest.mark.parametrize("size", [1, 2, 64])
def test_data_starts_at_pages(size: int) -> None:
    layout = SegmentLayout(size)
    assert layout.outbox(0, 0) % PAGE == 0
    assert layout.channel(size - 1, 0) % PAGE == 0


def test_channels_of_many_ranks_stay_small() -> None:
    layout = SegmentLayout(64)
    assert 64 * 64 * CELLS * layout.cell_bytes <= 64 << 20


@given(numel=st.integers(1, 100_000), room=st.integers(64, 5_000), size=st.integers(1, 9))
def test_parts_cover_every_element_once_and_fit(numel: int, room: int, size: int) -> None:
    length = min(numel, room * size)
    parts = [part_of(length, room, size, rank) for rank in range(size)]
    assert [i for part in parts for i in part] == list(range(length))
    assert all(len(part) <= room for part in parts)


@given(numel=st.integers(0, 10_000), size=st.integers(1, 9))
def test_owned_slices_cover_every_element_once(numel: int, size: int) -> None:
    slices = [owned_slice(numel, size, rank) for rank in range(size)]
    assert [i for part in slices for i in part] == list(range(numel))
