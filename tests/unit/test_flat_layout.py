"""Flat layouts: every element has one place, and the places do not depend on the workers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.lanes.flat_layout import ALIGN, BLOCK, lay_out

SHAPES = st.lists(
    st.one_of(st.lists(st.integers(0, 9), max_size=3).map(tuple), st.tuples(st.integers(1000, 3000))),
    min_size=1,
    max_size=12,
)


@given(SHAPES, st.integers(1, 9), st.data())
def test_every_element_has_one_place(shapes: list[tuple[int, ...]], workers: int, data: st.DataObject) -> None:
    keys = data.draw(st.lists(st.sampled_from("ab"), min_size=len(shapes), max_size=len(shapes)))
    sections = lay_out(shapes, keys, workers)
    seen = []
    for section in sections:
        assert section.numel % (workers * BLOCK) == 0
        end = 0
        for slot in section.slots:
            assert slot.start >= end
            assert slot.start % ALIGN == 0
            assert slot.stop - slot.start == math.prod(slot.shape)
            assert keys[slot.index] == section.key
            end = slot.stop
            seen.append(slot.index)
        assert end <= section.numel
        parts = [section.part(workers, rank) for rank in range(workers)]
        assert [parts[0].start, *(part.stop for part in parts)] == [
            rank * section.numel // workers for rank in range(workers + 1)
        ]
        assert all(part.start % BLOCK == 0 for part in parts)
        for slot in section.slots:  # no slice ends inside a block of a tensor, see [Note: blocks]
            cuts = [part.stop - slot.start for part in parts if slot.start < part.stop < slot.stop]
            assert all(cut % BLOCK == 0 for cut in cuts)
    assert sorted(seen) == list(range(len(shapes)))


@given(SHAPES)
def test_places_do_not_depend_on_the_workers(shapes: list[tuple[int, ...]]) -> None:
    keys = ["a"] * len(shapes)
    assert len({lay_out(shapes, keys, workers)[0].slots for workers in (1, 2, 3, 8)}) == 1
    assert {lay_out(shapes, keys, workers)[0].used for workers in (1, 2, 3, 8)} == {lay_out(shapes, keys, 1)[0].numel}


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("shapes", [[(32, 32), (0,)], [(0,)], [(0, 5), (2048,), (0,), (3, 0)]])
def test_a_tensor_without_elements_has_one_owner(shapes: list[tuple[int, ...]], workers: int) -> None:
    (section,) = lay_out(shapes, ["all"] * len(shapes), workers)
    parts = [section.part(workers, rank) for rank in range(workers)]
    assert [sum(slot.start in part for part in parts) for slot in section.slots] == [1] * len(shapes)
    assert lay_out(shapes, ["all"] * len(shapes), 1)[0].numel == section.used
