"""Where a chain of layers is cut."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.errors import BadInput
from lockstep.stages.actions import FILL_DRAIN, ONE_FORWARD_ONE_BACKWARD, ONE_LANE
from lockstep.stages.cuts import (
    Cost,
    best_cut,
    check_layers,
    check_memory,
    leanest_cut,
    read_cut,
    slowest,
    stage_bytes,
    stage_ranges,
)
from lockstep.stages.stage_memory import StageMemory

NAMES = ["embed", "layers.0", "layers.1", "norm", "head"]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.integers(1, 5), st.integers(1, 60))
def test_no_cut_is_better(times: list[int], stages: int, most: int) -> None:
    """Against every cut that there is, with and without a limit of memory."""
    costs = [Cost(time, time % 7 + 1) for time in times]
    for limit in (None, float(most)):
        every = [
            cut
            for cut in combinations(range(1, len(times)), stages - 1)
            if limit is None
            or all(sum(costs[n].bytes for n in part) <= limit for part in stage_ranges(cut, len(times)))
        ]
        best = best_cut(costs, stages, limit)
        assert (best is None) == (not every)
        if best is not None:
            assert slowest(best, costs) == min(slowest(cut, costs) for cut in every)
            assert tuple(best) in every


def test_read() -> None:
    assert read_cut("1,3", NAMES, 3) == [1, 3]
    assert read_cut("layers.0, head", NAMES, 3) == [1, 4]


@pytest.mark.parametrize(
    ("text", "stages", "said"),
    [
        ("1", 3, "3 stages are cut in 2 places, and 1 were given"),
        ("1,2", 2, "2 stages are cut in 1 place, and 2 were given"),
        ("2,1", 3, "the numbers must rise"),
        ("0,1", 3, "the numbers must rise"),
        ("5", 2, "the model has 5 layers, from 0 to 4"),
        ("nrm", 2, "none has that name; did you mean 'norm'?"),
    ],
)
def test_bad_cuts(text: str, stages: int, said: str) -> None:
    with pytest.raises(BadInput) as refused:
        read_cut(text, NAMES, stages)
    assert said in str(refused.value)


def test_more_stages_than_layers() -> None:
    check_layers(3, 3)
    with pytest.raises(BadInput, match="4 stages need at least 4 layers, and the model has 3"):
        check_layers(3, 4)


ORDERS = st.sampled_from([ONE_LANE, ONE_FORWARD_ONE_BACKWARD, FILL_DRAIN])
SIZES = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 9)), min_size=2, max_size=7)


@given(SIZES, st.integers(2, 4), ORDERS, st.integers(1, 6), st.integers(1, 120))
def test_memory_of_lanes_in_flight(
    sizes: list[tuple[int, int, int]], stages: int, order: str, lanes: int, limit: int
) -> None:
    """Against every cut: the first stages of a pipeline hold more lanes than the last ones."""
    costs = [Cost(*size) for size in sizes]
    held = StageMemory(copies=4.0, order=order, lanes=lanes).in_flight
    every = [list(cut) for cut in combinations(range(1, len(costs)), stages - 1)]
    if not every:
        return
    largest = {tuple(cut): max(stage_bytes(cut, costs, held)) for cut in every}
    assert max(stage_bytes(leanest_cut(costs, stages, held), costs, held)) == min(largest.values())
    fitting = [cut for cut in every if largest[tuple(cut)] <= limit]
    best = best_cut(costs, stages, limit, held)
    assert (best is None) == (not fitting)
    if best is not None:
        assert slowest(best, costs) == min(slowest(cut, costs) for cut in fitting)
        check_memory(costs, best, stages, limit, held)


def test_lanes_in_flight() -> None:
    held = {order: StageMemory(copies=4.0, order=order, lanes=8) for order in (ONE_LANE, "1f1b", FILL_DRAIN)}
    assert [[one.in_flight(4, stage) for stage in range(4)] for one in held.values()] == [
        [1, 1, 1, 1],
        [4, 3, 2, 1],
        [8, 8, 8, 8],
    ]


MIB = 2**20


@pytest.mark.parametrize(
    ("cut", "stages", "limit", "said"),
    [
        (None, 2, 10 * MIB, "2 stages need --stage-memory 16.0MiB or more; or use 4 stages, --workers 4"),
        (None, 2, 7 * MIB, "2 stages need --stage-memory 16.0MiB or more; more stages are not enough"),
        (
            [1],
            2,
            20 * MIB,
            "this --cut into 2 stages has a larger stage: leave --cut out, which gives",
        ),
    ],
)
def test_no_cut_fits(cut: list[int] | None, stages: int, limit: int, said: str) -> None:
    costs = [Cost(1.0, 8.0 * MIB) for _ in range(4)]
    with pytest.raises(BadInput) as refused:
        check_memory(costs, cut, stages, limit, lambda stages, stage: 1)
    assert said in str(refused.value)
