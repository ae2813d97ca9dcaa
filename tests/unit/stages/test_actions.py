"""The order of lanes in a pipeline, as a table."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.errors import BadInput
from lockstep.stages.actions import (
    Action,
    bubble,
    check_order,
    draw,
    in_halves,
    most_in_flight,
    stage_actions,
    timetable,
    uneven_bubble,
)

ORDERS = ["one-lane", "1f1b", "fill-drain"]
HALVES = "zero-bubble"
TABLE = {
    ("one-lane", 2, 0, 3): "F0 B0 F1 B1 F2 B2",
    ("one-lane", 2, 1, 3): "F0 B0 F1 B1 F2 B2",
    ("1f1b", 2, 0, 4): "F0 F1 B0 F2 B1 F3 B2 B3",
    ("1f1b", 2, 1, 4): "F0 B0 F1 B1 F2 B2 F3 B3",
    ("1f1b", 4, 0, 2): "F0 F1 B0 B1",
    ("1f1b", 3, 1, 4): "F0 F1 B0 F2 B1 F3 B2 B3",
    ("zero-bubble", 2, 0, 3): "F0 F1 B0 W0 F2 B1 W1 B2 W2",
    ("zero-bubble", 2, 1, 3): "F0 B0 F1 B1 W0 F2 B2 W1 W2",
    ("zero-bubble", 4, 3, 2): "F0 B0 F1 B1 W0 W1",
    ("zero-bubble", 2, 0, 5): "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4",
    ("zero-bubble", 2, 1, 5): "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 W2 W3 W4",
    ("fill-drain", 2, 0, 3): "F0 F1 F2 B0 B1 B2",
    ("fill-drain", 2, 1, 3): "F0 F1 F2 B0 B1 B2",
}


@pytest.mark.parametrize(("asked", "row"), TABLE.items(), ids=[" ".join(map(str, key)) for key in TABLE])
def test_table(asked: tuple[str, int, int, int], row: str) -> None:
    assert " ".join(map(str, stage_actions(*asked))) == row


@pytest.mark.parametrize("order", [*ORDERS, HALVES])
@pytest.mark.parametrize("stages", [1, 2, 3, 5])
@pytest.mark.parametrize("lanes", [1, 2, 3, 8])
def test_every_order_is_whole_and_ends(order: str, stages: int, lanes: int) -> None:
    """Every lane goes forward and backward once on every stage, backward in the order of lanes, and nobody waits on."""
    for stage, row in enumerate(timetable(order, stages, lanes)):
        done = [action for action in row if action is not None]
        once = list(dict.fromkeys(done))  # a whole backward takes as long as two halves
        assert once == stage_actions(order, stages, stage, lanes)
        assert sorted(one.lane for one in once if one.forward) == list(range(lanes))
        assert [one.lane for one in once if not one.forward and not one.weights] == list(range(lanes))
        halves = [one.lane for one in once if one.weights]
        assert halves == list(range(lanes - len(halves), lanes))
        assert halves == sorted(in_halves(once))
        assert bool(halves) == (order == HALVES and (stage > 0 or 2 * lanes < 5 * stages))
        for lane in halves:
            assert once.index(Action(lane, False)) < once.index(Action(lane, False, True))


def test_lanes_in_flight() -> None:
    """1f1b holds as many lanes as stages follow, zero-bubble as many as there are stages, fill-drain all of them.

    With many lanes, zero-bubble holds up to three times as many.
    """
    streamed = [most_in_flight(stage_actions("1f1b", 4, stage, 8)) for stage in range(4)]
    filled = [most_in_flight(stage_actions("fill-drain", 4, stage, 8)) for stage in range(4)]
    alone = [most_in_flight(stage_actions("one-lane", 4, stage, 8)) for stage in range(4)]
    halved = [most_in_flight(stage_actions(HALVES, 4, stage, 8)) for stage in range(4)]
    many = [most_in_flight(stage_actions(HALVES, 4, stage, 32)) for stage in range(4)]
    assert (streamed, filled, alone, halved) == ([4, 3, 2, 1], [8] * 4, [1] * 4, [4] * 4)
    assert many == [10, 7, 8, 9]


@pytest.mark.parametrize("order", [*ORDERS, HALVES])
@pytest.mark.parametrize(("stages", "lanes"), [(2, 1), (2, 8), (4, 4), (4, 16)])
def test_the_bubble_is_what_the_timetable_shows(order: str, stages: int, lanes: int) -> None:
    rows = timetable(order, stages, lanes)
    idle = sum(action is None for row in rows for action in row) / sum(len(row) for row in rows)
    assert bubble(order, stages, lanes) == pytest.approx(idle)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("stages", "lanes"), [(2, 1), (2, 8), (4, 4), (4, 16)])
def test_equal_stages_have_the_bubble_of_theory_whatever_backward_takes(order: str, stages: int, lanes: int) -> None:
    assert uneven_bubble(order, [(1.0, 2.5)] * stages, lanes) == pytest.approx(bubble(order, stages, lanes))


@pytest.mark.parametrize(("stages", "lanes"), [(2, 4), (2, 8), (3, 8), (4, 8), (4, 16), (8, 16)])
def test_halves_leave_a_third_of_the_bubble(stages: int, lanes: int) -> None:
    """Of forward and both halves of a backward, each stage before costs one in place of three."""
    assert bubble(HALVES, stages, lanes) == pytest.approx((stages - 1) / (3 * lanes + stages - 1))


def test_the_bubble_of_uneven_stages() -> None:
    """Three lanes of 1 s, then 4 s: the second stage works from second 1 to 13, the first for 3 s."""
    assert uneven_bubble("fill-drain", [(1.0, 0.0), (4.0, 0.0)], 3) == pytest.approx(1 - 15 / (2 * 13))
    assert uneven_bubble("one-lane", [(1.0, 1.0), (2.0, 2.0)], 5) == pytest.approx(0.5)
    assert uneven_bubble("1f1b", [(0.0, 0.0)] * 2, 4) == 0.0


def test_drawing() -> None:
    assert draw("1f1b", 2, 3) == "stage 0  0  1  .  0' 2  1' .  2'\nstage 1  .  0  0' 1  1' 2  2' ."
    assert draw(HALVES, 2, 2) == "stage 0  0  1  .  0' 0\" 1' 1\"\nstage 1  .  0  0' 1  1' 0\" 1\""


def test_the_drawing_of_the_documentation() -> None:
    page = (Path(__file__).parents[3] / "docs" / "model-parallelism.md").read_text(encoding="utf-8")
    assert draw("1f1b", 2, 4) in page
    assert draw(HALVES, 2, 8) in page


def test_an_order_that_there_is_not() -> None:
    with pytest.raises(
        BadInput, match=r"1f1b, zero-bubble or fill-drain: there is none called '1f1'; did you mean '1f1b'\?"
    ):
        check_order("1f1")
