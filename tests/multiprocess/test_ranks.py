"""The processes that other tests run their functions on."""

from __future__ import annotations

import time

import pytest

from tests.ranks import Ranks


def late(rank: int, size: int, seconds: float) -> str:
    time.sleep(seconds)
    return "late"


def prompt(rank: int, size: int) -> int:
    return rank


def test_an_answer_that_came_too_late_is_not_taken_for_the_next() -> None:
    with Ranks(2, backend="") as ranks:
        ranks.start(late, 1.0)
        with pytest.raises(TimeoutError, match=r"ranks \[0, 1\] did not answer"):
            ranks.outcomes(seconds=0.1)
        assert ranks.run(prompt) == [0, 1]
