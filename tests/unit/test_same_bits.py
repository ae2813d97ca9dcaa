"""For how many workers the bits hold, in words and as a number."""

from __future__ import annotations

import pytest

from lockstep.settings import Settings
from lockstep.train.same_bits import bits_hold_for, more_lanes, same_bits_up_to
from lockstep.train.spec import RunSpec
from tests.commands import TINY


@pytest.mark.parametrize(
    ("workers", "lanes", "words", "more"),
    [
        (1, 1, "1 lane: the same bits on 1 worker", 8),
        (2, 2, "2 lanes, one per worker: the same bits on 1 or 2 workers", 8),
        (2, 8, "8 lanes: the same bits on any number of workers up to 8", None),
        (1, 2, "2 lanes: the same bits on 1 or 2 workers", None),
        (8, 8, "8 lanes, one per worker: the same bits on any number of workers up to 8", 16),
        (64, 64, "64 lanes, one per worker: the same bits on any number of workers up to 64", None),
    ],
)
def test_words(workers: int, lanes: int, words: str, more: int | None) -> None:
    settings = Settings(strategy="ddp" if workers > 1 else "single", workers=workers)
    would = f"; lanes={more} in the recipe would hold for up to {more}" if more else ""
    assert bits_hold_for(settings, lanes=lanes, global_batch=64) == words + would
    assert same_bits_up_to(settings, lanes) == lanes


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        (Settings(strategy="torch-ddp", workers=2), "strategy torch-ddp"),
        (Settings(strategy="lightning", workers=2), "strategy lightning"),
        (Settings(strategy="of another machine", workers=2), "strategy of another machine"),
        (Settings(strategy="ddp", workers=2, exact=False, sync_batchnorm=True), "SyncBatchNorm, inexact sum"),
    ],
)
def test_bits_that_depend_on_the_workers(settings: Settings, cause: str) -> None:
    assert same_bits_up_to(settings, 8) == 0
    assert bits_hold_for(settings, lanes=8, global_batch=64) == f"the bits depend on the number of workers: {cause}"


def test_more_lanes_divide_the_batch() -> None:
    assert [more_lanes(*case) for case in ((2, 36), (9, 36), (1, 6), (1, 8))] == [9, 12, None, 8]


@pytest.mark.parametrize(
    ("spec", "lanes"),
    [
        (RunSpec(recipe="mlp", default_lanes=2), 4),
        (RunSpec(recipe="mlp", lanes=2, default_lanes=8), 2),
        (RunSpec(recipe="cifar100"), 8),
        (RunSpec(recipe="bytes"), 8),
    ],
)
def test_lanes_typed_win_then_the_recipes(spec: RunSpec, lanes: int) -> None:
    assert spec.load().lanes == lanes


def test_lanes_that_neither_says() -> None:
    assert RunSpec(recipe=TINY).load().lanes is None
    assert RunSpec(recipe=TINY, default_lanes=4).load().lanes == 4
