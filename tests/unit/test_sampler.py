"""The order of samples: a permutation, of the seed and the epoch alone, any part at no cost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.data.sampler import permutation

SEEDS = st.integers(-(2**40), 2**40)


@given(st.integers(1, 3000), SEEDS, st.integers(0, 100))
def test_every_sample_once(samples: int, seed: int, epoch: int) -> None:
    assert sorted(permutation(samples, seed=seed, epoch=epoch).tolist()) == list(range(samples))


@given(st.integers(1, 500), SEEDS, st.data())
def test_a_part_is_the_part_of_the_whole(samples: int, seed: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, samples))
    stop = data.draw(st.integers(start, samples))
    whole = permutation(samples, seed=seed, epoch=3)
    assert permutation(samples, seed=seed, epoch=3, start=start, stop=stop).tolist() == whole[start:stop].tolist()


def test_seed_and_epoch_change_the_order() -> None:
    orders = {tuple(permutation(64, seed=seed, epoch=epoch).tolist()) for seed in range(4) for epoch in range(4)}
    assert len(orders) == 16
    assert tuple(range(64)) not in orders


def test_it_mixes() -> None:
    """Neighbours land far apart: the mean distance of a random order is a third of its length."""
    order = permutation(10_000, seed=1, epoch=0).astype(np.int64)
    assert 3000 < np.abs(np.diff(order)).mean() < 3667
    # each tenth of the epoch draws evenly from each tenth of the data
    counts = np.histogram2d(np.arange(10_000) // 1000, order // 1000, bins=10)[0]
    assert counts.min() > 60
    assert counts.max() < 145


def test_the_first_batch_of_a_huge_epoch_needs_no_list() -> None:
    first = permutation(10**11, seed=0, epoch=0, start=0, stop=256)
    assert len(set(first.tolist())) == 256
    assert first.max() < 10**11


def test_positions_outside_are_refused() -> None:
    with pytest.raises(ValueError, match="positions"):
        permutation(10, seed=0, epoch=0, start=5, stop=11)
