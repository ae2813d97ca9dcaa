"""The progress line: how far, how good, how long it will take."""

from __future__ import annotations

import pytest

from lockstep.train.progress import Progress, time_left


@pytest.mark.parametrize(
    ("done", "remaining", "elapsed", "expected"),
    [
        (0, 10, 5.0, ""),
        (10, 0, 5.0, ""),
        (10, 20, 5.0, ", 10 s left"),
        (10, 290, 5.0, ", 2 min 25 s left"),
        (10, 10_000, 10.0, ", 2 h 46 min left"),
    ],
)
def test_time_left(done: int, remaining: int, elapsed: float, expected: str) -> None:
    assert time_left(done, remaining, elapsed) == expected


def test_the_line_says_how_far_how_good_and_how_long(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was resumed after 10 of 40 steps, and does 10 in 20 seconds."""
    now = 100.0
    monkeypatch.setattr("lockstep.train.progress.time.monotonic", lambda: now)
    with Progress(40, label="tiny ddp, 2 workers", shown=True, first=10) as progress:
        now = 120.0
        progress.step(20, 1.5)
        progress.evaluated({"accuracy": 0.25}, "best so far")
        now = 121.0
        progress.step(21, 1.4)  # too early for another line
        progress.step(40, 1.0)
    assert capsys.readouterr().err.splitlines() == [
        "tiny ddp, 2 workers: step 20/40, loss 1.5000, 40 s left",
        "tiny ddp, 2 workers: step 20/40, loss 1.5000, accuracy 0.2500 (best so far), 40 s left",
        "tiny ddp, 2 workers: step 40/40, loss 1.0000, accuracy 0.2500 (best so far)",
    ]


def test_nothing_is_said_when_not_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(1, label="quiet", shown=False) as progress:
        progress.step(1, 1.0)
        progress.evaluated({"accuracy": 1.0})
    assert capsys.readouterr().err == ""
