"""Turns that a hypervisor disturbed are measured again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lockstep.bench.ranks import stolen_time


def measured(monkeypatch: pytest.MonkeyPatch, taken: list[float]) -> tuple[int, int]:
    """Return which try counts, and how many there were, if each lost so many seconds."""
    clock = 0.0
    loss: Iterator[float] = iter(taken)
    tries = 0

    def turn() -> int:
        nonlocal clock, tries
        clock += next(loss)
        tries += 1
        return tries

    monkeypatch.setattr(stolen_time, "_stolen", lambda: clock)
    monkeypatch.setattr(stolen_time, "_as_rank_0", lambda number: number)
    return stolen_time.quietest(turn), tries


def test_a_quiet_turn_counts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured(monkeypatch, [0.0]) == (1, 1)
    assert measured(monkeypatch, [0.01]) == (1, 1), "one tick of the kernel's clock says nothing"


def test_the_first_quiet_try_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured(monkeypatch, [0.5, 0.3, 0.0, 0.0]) == (3, 3)


def test_else_the_quietest(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured(monkeypatch, [0.5, 0.3, 0.2, 0.4, 0.6, 0.0]) == (3, stolen_time.TRIES)
