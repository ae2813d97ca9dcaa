"""What is read from the recorded lanes of a model that is cut: actions, and the bubble with its sources."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from lockstep.errors import BadInput
from lockstep.report.bubbles import bubble_of, middle_bubble
from lockstep.report.charts import all_charts
from lockstep.report.collect import FinishedRun, read_run
from lockstep.report.compare import judge
from lockstep.report.lane_actions import LaneAction, lane_actions
from lockstep.report.render import run_lines
from lockstep.stages.actions import Action, bubble, lane_order, stage_actions, uneven_bubble
from tests.unit.report.causes import run, way
from tests.unit.report.folders import make_run
from tests.unit.report.made_up_stages import EQUAL, RECORDED, stage_run

UNEVEN = ((10e-3, 20e-3), (20e-3, 40e-3), (5e-3, 9e-3))


@pytest.mark.parametrize(
    ("strategy", "schedule"), [("layers", "1f1b"), ("pipeline", "1f1b"), ("pipeline", "fill-drain")]
)
def test_the_actions_are_those_of_the_schedule(strategy: str, schedule: str) -> None:
    made = lane_actions(stage_run(strategy, UNEVEN, schedule=schedule, passing=1e-3))
    for stage in range(3):
        own = [one for one in made if one.rank == stage and one.step == 4]
        assert [Action(one.lane, one.forward) for one in own] == stage_actions(
            lane_order(strategy, schedule), 3, stage, 4
        )
        for one in own:
            assert one.seconds == pytest.approx(UNEVEN[stage][0 if one.forward else 1], abs=2e-6)
    assert {one.step for one in made} == set(RECORDED)
    passed = [one for one in made if one.passing]
    assert all(one.passing == pytest.approx(1e-3) for one in passed)
    assert not [one for one in passed if one.stage == (2 if one.forward else 0)], "the ends have nobody to pass to"


def test_a_backward_in_halves_is_two_actions() -> None:
    """But on the first stage, where nobody waits for the first half, and for the last lane, whose halves are one."""
    made = lane_actions(stage_run("pipeline", EQUAL[:1] * 2, schedule="zero-bubble"))
    first, second = (
        " ".join(f"{'F' if one.forward else 'W' if one.weights else 'B'}{one.lane}" for one in made if _is(one, stage))
        for stage in range(2)
    )
    assert first == "F0 F1 B0 F2 B1 F3 B2 B3"
    assert second == "F0 B0 F1 B1 W0 F2 B2 W1 F3 B3 W2 W3"
    whole = bubble_of(stage_run("pipeline", EQUAL[:1] * 2, lanes=8, schedule="zero-bubble"))
    assert whole is not None
    assert whole.measured == pytest.approx(whole.uneven, abs=1e-4)
    assert whole.measured == pytest.approx(uneven_bubble("zero-bubble", EQUAL[:1] * 2, 8), abs=1e-4)


def _is(one: LaneAction, stage: int) -> bool:
    return (one.rank, one.step) == (stage, 4)


def test_replicas_have_lanes_of_their_own() -> None:
    made = lane_actions(stage_run(lanes=8, replicas=2))
    lanes = {replica: {one.lane for one in made if one.replica == replica} for replica in (0, 1)}
    assert lanes == {0: {0, 2, 4, 6}, 1: {1, 3, 5, 7}}
    assert {(one.rank, one.replica, one.stage) for one in made} == {(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1)}


@pytest.mark.parametrize(("strategy", "lanes"), [("layers", 4), ("pipeline", 1), ("pipeline", 4), ("pipeline", 16)])
@pytest.mark.parametrize("stages", [2, 4])
def test_equal_stages_have_the_bubble_of_theory(strategy: str, lanes: int, stages: int) -> None:
    bubbles = bubble_of(stage_run(strategy, EQUAL[:1] * stages, lanes=lanes))
    assert bubbles is not None
    theory = bubble(lane_order(strategy, "1f1b"), stages, lanes)
    assert bubbles.measured == pytest.approx(theory, abs=1e-4)
    assert bubbles.uneven == pytest.approx(theory, abs=1e-4)
    assert (bubbles.theory, bubbles.passing, bubbles.expected) == (theory, 0.0, 0.25)


def test_the_sources_of_a_bubble_are_told_apart() -> None:
    uneven = bubble_of(stage_run(seconds=UNEVEN, lanes=8))
    assert uneven is not None
    assert uneven.measured == pytest.approx(uneven_bubble("1f1b", UNEVEN, 8), abs=1e-4)
    assert uneven.uneven == pytest.approx(uneven.measured, abs=1e-4)
    assert uneven.measured > uneven.theory + 0.2
    late = bubble_of(stage_run(lanes=8, passing=2e-3, on_its_way=8e-3))
    assert late is not None
    assert late.uneven == pytest.approx(late.theory, abs=1e-4), "the stages compute equally long"
    assert late.passing > 0.03
    assert late.measured > late.theory + 0.02, "and wait for what is on its way"


def test_clocks_of_other_hosts_do_not_matter() -> None:
    plain = stage_run(lanes=8)
    apart = stage_run(lanes=8, hosts=("host-a", "host-b"), ahead=(0.0, 3.5))
    measured, moved = bubble_of(plain), bubble_of(apart)
    assert measured is not None
    assert moved is not None
    assert moved.measured == pytest.approx(measured.measured, abs=1e-4)
    for one, other in zip(lane_actions(plain), lane_actions(apart), strict=True):
        assert one.start == pytest.approx(other.start, abs=1e-5)
    same = bubble_of(stage_run(lanes=8, ahead=(0.0, 3.5)))
    assert same is not None
    assert same.measured > 0.9, "ranks of one host share a clock, which is believed"


def test_a_run_that_recorded_no_lanes() -> None:
    assert lane_actions(run("ddp", 2)) == ()
    assert bubble_of(run("ddp", 2)) is None
    assert middle_bubble([run("ddp", 2)]) is None


def test_of_several_repeats_the_one_in_the_middle() -> None:
    runs = [stage_run(lanes=lanes) for lanes in (16, 2, 4)]
    middle = middle_bubble(runs)
    assert middle is not None
    assert middle.theory == bubble("1f1b", 2, 4)


def test_a_run_says_it() -> None:
    assert "bubble 20 % measured, 20 % if all stages took equally long, 25 % expected for this cut" in run_lines(
        stage_run()
    )
    assert "bubble 20 % measured, 20 % if all stages took equally long" in run_lines(stage_run(expected=None))


def changed(**fields: object) -> FinishedRun:
    made = stage_run()
    ranks = (structs.replace(made.result.ranks[0], **fields), *made.result.ranks[1:])
    return replace(made, result=structs.replace(made.result, ranks=ranks))


CHANGED = {
    "a gap": changed(stage=5),
    "no first stage": changed(stage=1),
    "replicas of one stage": changed(replica=9),
    "no time": stage_run(lanes=1, seconds=((0.0, 0.0), (0.0, 0.0))),
}


@pytest.mark.parametrize("made", CHANGED.values(), ids=CHANGED)
def test_a_folder_that_was_changed_has_no_bubble(made: FinishedRun) -> None:
    comparison = judge("changed", [way("pipeline", made)])
    assert comparison.rows[0].bubble is None
    all_charts(comparison)


def test_an_order_that_there_is_not_counts_as_the_default() -> None:
    made = stage_run()
    spec = replace(made.setup.spec, pipeline_schedule="sideways")
    assert bubble_of(replace(made, setup=structs.replace(made.setup, spec=spec))) == bubble_of(made)


def test_a_lane_for_each_span(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", strategy="ddp", workers=2)
    path = folder / "rank-1.jsonl"
    path.write_text(path.read_text().replace('"spans":', '"span_lanes":[0,null],"spans":', 1))
    with pytest.raises(BadInput, match=r"has 2 span_lanes for 6 spans in step 2, and one for each was expected"):
        read_run(folder)
