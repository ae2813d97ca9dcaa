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
    with Progress(40, label="tiny", shown=True, first=10) as progress:
        now = 120.0
        progress.step(20, 1.5)
        progress.evaluated({"loss": 2.0, "accuracy": 0.25}, "the best accuracy so far")
        now = 121.0
        progress.step(21, 1.4)  # too early for another line
        progress.step(40, 1.0)  # what is evaluated after the last step belongs into its line
        progress.evaluated({"loss": 1.75, "accuracy": 0.125}, "best accuracy 0.2500 after 20 steps")
    assert capsys.readouterr().err.splitlines() == [
        "tiny: step 20/40, loss 1.5000, 40 s left",
        "tiny: step 20/40, loss 1.5000, 40 s left; evaluation: loss 2.0000, accuracy 0.2500, the best accuracy so far",
        "tiny: step 40/40, loss 1.0000; evaluation: loss 1.7500, accuracy 0.1250, best accuracy 0.2500 after 20 steps",
    ]


def test_the_last_step_is_said_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(1, label="tiny", shown=True) as progress:
        progress.step(1, 1.0)
    assert capsys.readouterr().err == "tiny: step 1/1, loss 1.0000\n"


def test_nothing_is_said_when_not_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(1, label="quiet", shown=False) as progress:
        progress.step(1, 1.0)
        progress.evaluated({"accuracy": 1.0})
    assert capsys.readouterr().err == ""
