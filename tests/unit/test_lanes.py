"""Who owns which lane and which sample: tables and properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.errors import BadInput
from lockstep.lanes.schedule import check_lanes, lane_samples, one_sample_lane, owned_lanes, steps_per_epoch


@given(st.integers(1, 64), st.integers(1, 64))
def test_every_lane_has_one_owner(lanes: int, workers: int) -> None:
    owned = [lane for rank in range(workers) for lane in owned_lanes(lanes, workers, rank)]
    assert owned == list(range(lanes))
    if workers <= lanes:
        assert all(len(owned_lanes(lanes, workers, rank)) for rank in range(workers))


@given(st.integers(0, 300), st.integers(1, 32))
def test_every_sample_has_one_lane(samples: int, lanes: int) -> None:
    parts = [lane_samples(samples, lanes, lane) for lane in range(lanes)]
    assert [position for part in parts for position in part] == list(range(samples))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize(("samples", "batch", "steps"), [(100, 10, 10), (101, 10, 11), (5, 10, 1), (1, 1, 1)])
def test_steps(samples: int, batch: int, steps: int) -> None:
    assert steps_per_epoch(samples, batch) == steps


@pytest.mark.parametrize(
    ("lanes", "workers", "batch", "words"),
    [
        (6, 8, 48, r"lanes=6 cannot be cut over 8 workers: use at most 6 workers, or --lanes 8"),
        (6, 2, 64, r"lanes=6 does not divide the global batch of 64.*use --lanes (4|8)"),
        (8, 2, 4, r"lanes=8 does not divide the global batch of 4.*use --lanes 4"),
        (4, 0, 8, r"workers=0"),
        (0, 1, 8, r"lanes=0"),
        (1, 1, 0, r"global_batch=0"),
    ],
)
def test_refused(lanes: int, workers: int, batch: int, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        check_lanes(lanes, workers, batch)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("samples", range(8, 33))
@pytest.mark.parametrize("lanes", [1, 2, 4, 8])
def test_the_first_lane_of_one_sample(samples: int, lanes: int, drop_last: bool) -> None:
    lone = [
        (step, lane)
        for step in range(steps_per_epoch(samples, 8, drop_last=drop_last))
        for lane in range(lanes)
        if len(lane_samples(min(8, samples - 8 * step), lanes, lane)) == 1
    ]
    assert one_sample_lane(samples, 8, lanes, drop_last=drop_last) == (lone[0] if lone else None)


def test_a_lane_of_one_sample_in_a_stream_without_a_length() -> None:
    assert one_sample_lane(None, 8, 8, drop_last=False) == (0, 0)
    assert one_sample_lane(None, 8, 4, drop_last=False) is None
