"""Where a chain of layers is cut."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.errors import BadInput
from lockstep.stages.cuts import Cost, best_cut, check_layers, read_cut, slowest, stage_ranges

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
