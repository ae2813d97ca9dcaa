"""A sweep over lanes: parity within a number of lanes, what more of them cost, and the curve."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from lockstep.report.charts import all_charts, lanes
from lockstep.report.collect import FinishedRun
from lockstep.report.columns import columns
from lockstep.report.compare import Comparison, judge
from lockstep.report.parity import likely_cause
from lockstep.report.sweep import sweeps
from tests.unit.report.causes import PLAIN, parts, run, way


def step(strategy: str, count: int, times: float, state: str = "") -> FinishedRun:
    """Return a run whose step takes so many times 100 ms."""
    workers = 1 if strategy == "single" else 2
    ranks = [{part: seconds * times for part, seconds in PLAIN.items()}] * workers
    return run(strategy, workers, ranks=ranks, lanes=count, state=state or f"of {count} lanes")


def swept(*runs: FinishedRun) -> Comparison:
    return judge("t", [way(f"{one.setup.spec.strategy}, {one.setup.plan.lanes} lanes", one) for one in runs])


SWEEP = (
    step("single", 2, 2.0),
    step("ddp", 2, 1.0),
    step("torch-ddp", 2, 1.2, state="b"),
    step("single", 8, 6.0),
    step("ddp", 8, 3.1),
    step("torch-ddp", 8, 1.3, state="c"),
)


def test_bits_are_compared_within_a_number_of_lanes() -> None:
    parity = [row.parity for row in swept(*SWEEP).rows]
    assert parity[0] == "the others are compared with this"
    assert parity[1] == parity[4] == "same bits"
    assert parity[3] == "other number of lanes: the others with 8 lanes are compared with this"
    assert "number of lanes" not in parity[2] + parity[5]
    assert likely_cause(SWEEP[1], SWEEP[4], None) == "other number of lanes (8 against 2)"


def test_speed_up_is_over_single_with_as_many_lanes() -> None:
    comparison = swept(*SWEEP)
    assert [row.speed_up for row in comparison.rows] == pytest.approx([1.0, 2.0, 2 / 1.2, 1.0, 6 / 3.1, 6 / 1.3])
    assert comparison.settings["lanes"] == "2, 8"
    points = [(point.curve, point.workers) for point in comparison.curve]
    assert points[:2] == [("ddp, 2 lanes", 1), ("ddp, 2 lanes", 2)]


def test_the_cause_of_a_speed_is_sought_among_rows_with_as_many_lanes() -> None:
    """torch-ddp with 8 lanes exchanges a lot; ddp is faster with 2 lanes, and not with 8."""
    slow = run("torch-ddp", 2, ranks=[parts(exchange=50)] * 2, lanes=8, state="b", sent=10**7)
    sentence = swept(step("ddp", 2, 0.5), step("ddp", 8, 3.1), slow).rows[2].why
    assert "on one host use ddp" in sentence
    assert "measured" not in sentence


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (
            3.1,
            "ddp on 2 workers: 8 lanes in place of 2 cost 3.1 times the step; they hold the bits for up to 8 workers.",
        ),
        (1.18, "8 lanes in place of 2 cost 18% more per step;"),
        (1.02, "8 lanes in place of 2 cost no more than the runs differ among themselves;"),
        (0.8, "8 lanes in place of 2 take 0.80 of the step;"),
    ],
)
def test_the_recommendation_names_what_lanes_cost(times: float, words: str) -> None:
    comparison = swept(step("single", 2, 2.0), step("ddp", 2, 1.0), step("single", 8, 9.0), step("ddp", 8, times))
    assert any(words in sentence for sentence in comparison.recommendation), comparison.recommendation


@pytest.mark.parametrize("runs", [SWEEP[:3], (SWEEP[2], SWEEP[5])])
def test_nothing_is_said_of_lanes_where_it_is_not_known_or_not_true(runs: Sequence[FinishedRun]) -> None:
    """One number of lanes; or a strategy whose bits depend on its workers anyway."""
    assert "hold the bits" not in " ".join(swept(*runs).recommendation)


def test_the_curve() -> None:
    comparison = swept(*SWEEP)
    assert list(sweeps(comparison.rows)) == ["single", "ddp", "torch-ddp"]
    (chart,) = lanes.charts(comparison)
    assert chart.lines[3] == ("ddp", "8", "310 ms", "3.10×")
    assert "ddp 100 ms with 2, 310 ms with 8" in chart.words
    assert chart.wide.count("ring") == len(SWEEP)
    assert "lanes" in [one.key for one in all_charts(comparison)]
    assert list(lanes.charts(swept(*SWEEP[:3]))) == []
    assert len({key.colour for key in chart.legend}) == 3, "a strategy has one colour, whatever its lanes"


def test_a_terminal_tells_the_first_row_of_each_number_of_lanes() -> None:
    rows = swept(*SWEEP).rows
    parity = next(column for column in columns(rows) if column.heading == "parity")
    assert parity.brief is not None
    assert [parity.brief(row) for row in rows[:2] + rows[3:5]] == ["first", "same bits", "first", "same bits"]


def test_idle_cpus_are_told() -> None:
    """Every row of several workers used two of eight CPUs; on two CPUs there is nothing to say."""
    idle = "At most 2 of 8 CPUs computed with several workers: more --workers, or --threads all, would use the rest."
    many = judge("t", [way(one, run(one, 2, cpus=8)) for one in ("ddp", "torch-ddp")])
    assert idle in many.recommendation
    few = judge("t", [way(one, run(one, 2, cpus=2)) for one in ("ddp", "torch-ddp")])
    assert "CPUs computed" not in " ".join(few.recommendation)
    elsewhere = judge("t", [way("ddp", run("ddp", 2, cpus=8, device="cuda:0"))])
    assert "CPUs computed" not in " ".join(elsewhere.recommendation)
