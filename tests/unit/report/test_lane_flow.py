"""The chart of lanes through the stages, from recordings whose times are known."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import msgspec
import pytest

from lockstep.report.charts import all_charts
from lockstep.report.charts.frame import Chart
from lockstep.report.charts.lane_flow import charts, middle_steps
from lockstep.report.collect import FinishedRun, Span
from lockstep.report.compare import Comparison, judge
from lockstep.report.lane_actions import lane_actions, meetings
from lockstep.report.markdown import markdown
from lockstep.report.trace import trace
from tests.unit.report.causes import run, way
from tests.unit.report.made_up_stages import EQUAL, stage_run

RECT = "{http://www.w3.org/2000/svg}rect"
TEXT = "{http://www.w3.org/2000/svg}text"


def compared(**runs: FinishedRun) -> Comparison:
    return judge("made up", [way(name, one) for name, one in runs.items()])


def chart(comparison: Comparison) -> Chart:
    (only,) = charts(comparison)
    return only


def bars(picture: str, kind: str) -> list[ElementTree.Element]:
    return [mark for mark in ElementTree.fromstring(picture).iter(RECT) if f" p-{kind}-" in str(mark.get("class"))]


def test_a_bar_for_each_action() -> None:
    made = chart(compared(pipeline=stage_run(passing=1e-3), layers=stage_run("layers")))
    for picture in (made.wide, made.narrow):
        for kind in ("forward", "backward"):
            assert len(bars(picture, kind)) == 2 * 2 * 2 * 4, "two ways, two steps, two stages, four lanes"
    first = bars(made.wide, "forward")[:4]
    assert [str(bar.get("class")).rpartition("-")[2] for bar in first] == ["1", "2", "3", "4"], "a shade for each lane"
    starts = [float(bar.get("x", 0)) for bar in first]
    assert starts == sorted(starts)
    told = r"pipeline, stage 0, step \d: forward of lane 0, 11.0 ms, 1.00 ms of it passing on"
    assert re.fullmatch(told, str(first[0].get("data-tip")))


def test_forward_and_backward_differ_by_more_than_colour() -> None:
    made = chart(compared(pipeline=stage_run()))
    forward, backward = (bars(made.wide, kind) for kind in ("forward", "backward"))
    tops = sorted({float(bar.get("y", 0)) for bar in forward})
    lower = sorted({float(bar.get("y", 0)) for bar in backward})
    assert [after - before for before, after in zip(tops, lower, strict=True)] == [6.0, 6.0], "a row for each worker"
    written = [text.text for text in ElementTree.fromstring(made.wide).iter(TEXT)]
    assert written.count("3") == written.count("3'") == 4, "and by what is written on it"
    assert float(backward[0].get("width", 0)) == pytest.approx(2 * float(forward[0].get("width", 0)) + 1, rel=0.02)


def test_waiting_is_drawn_and_told() -> None:
    made = chart(compared(pipeline=stage_run()))
    waits = [mark for mark in ElementTree.fromstring(made.wide).iter(RECT) if "p-wait" in str(mark.get("class"))]
    told = [str(mark.get("data-tip")) for mark in waits]
    assert "pipeline, rank 1, step 5: waiting for lane 0, 10.0 ms" in told
    labels = ["".join(text.itertext()) for text in ElementTree.fromstring(made.wide).iter(TEXT)]
    assert "rank 0, waits 20 %" in labels
    assert "bubble 20 % measured, 20 % if all stages took equally long, 25 % expected for this cut" in made.help
    assert "pipeline: 4 lanes on 2 stages, bubble 20 % measured" in made.words
    assert ("pipeline", "1", "1", "5", "4", "40.0 ms", "80.0 ms", "0 s", "30.0 ms") in made.lines
    assert all(len(line) == len(made.headings) for line in made.lines)


def test_many_lanes_are_shown_in_one_step() -> None:
    made = chart(compared(pipeline=stage_run(lanes=16)))
    assert len(bars(made.wide, "forward")) == 2 * 16
    assert len({line[3] for line in made.lines}) == 1


def test_the_steps_in_the_middle() -> None:
    actions = lane_actions(stage_run())
    slow = [replace(one, end=one.end + 1.0) if one.step in (4, 5) else one for one in actions]
    assert middle_steps(slow, 1) in {(3,), (6,), (7,)}
    gap = [one for one in actions if one.step in (3, 5, 7)]
    assert len(middle_steps(gap, 2)) == 1, "steps that do not follow each other are not drawn as if they did"


def test_the_meeting_of_a_step_is_no_wait_of_a_lane_or_of_replicas() -> None:
    """On accelerators it stands before the lanes of the next step, and not behind its own."""

    def meeting(*parts: tuple[str, int | None]) -> float:
        recorded = [
            Span(rank=1, step=4, name=part, start=place, seconds=0.5, lane=lane)
            for place, (part, lane) in enumerate(parts)
        ]
        return meetings(recorded)[1, 4]

    lanes = [("data", None), ("forward", 0), ("wait", 0), ("backward", 0), ("wait", None)]
    update = [("exchange", None), ("optimizer", None), ("exchange", None), ("wait", None), ("optimizer", None)]
    assert meeting(*lanes, *update) == 8.5
    assert meeting(*update, *lanes) == 3.5
    assert meeting(*lanes, ("exchange", None), ("optimizer", None)) == 4.5, "torch-pipeline has one wait"


def test_no_chart_without_lanes() -> None:
    assert list(charts(compared(ddp=run("ddp", 2)))) == []


def test_many_workers_are_cut_off() -> None:
    made = chart(compared(pipeline=stage_run(seconds=EQUAL[:1] * 20, lanes=2)))
    assert len({line[2] for line in made.lines}) == 16


def test_tables_have_the_bubble() -> None:
    comparison = compared(pipeline=stage_run(), ddp=run("ddp", 2))
    table = [line for line in markdown(comparison).splitlines() if line.startswith("|")]
    place = [cell.strip() for cell in table[0].split("|")].index("bubble (in theory)")
    assert [line.split("|")[place].strip() for line in table[2:]] == ["20 % (20 %)", "–"]
    content = comparison.as_json()["rows"]
    assert isinstance(content, list)
    assert content[0]["bubble"]["theory"] == pytest.approx(0.2)
    assert content[1]["bubble"] is None
    assert "bubble" not in markdown(compared(ddp=run("ddp", 2)))


def test_the_page_has_it_after_the_ranks() -> None:
    keys = [one.key for one in all_charts(compared(pipeline=stage_run()))]
    assert keys[keys.index("timeline") + 1] == "lane-flow"


def test_the_trace_has_the_lanes() -> None:
    content = msgspec.to_builtins(trace(compared(pipeline=stage_run())))["traceEvents"]
    names = [event["args"]["name"] for event in content if event["name"] == "thread_name"]
    assert names == ["rank 0, stage 0 on host-a", "rank 1, stage 1 on host-a"]
    steps = [event for event in content if event["ph"] == "X" and event["args"]["step"] == 3]
    done = [event["name"] for event in steps if event["name"].startswith(("forward", "backward"))][:8]
    assert done == [
        "forward, lane 0",
        "forward, lane 1",
        "backward, lane 0",
        "forward, lane 2",
        "backward, lane 1",
        "forward, lane 3",
        "backward, lane 2",
        "backward, lane 3",
    ]
    assert next(event for event in steps if event["name"] == "forward, lane 2")["args"] == {"step": 3, "lane": 2}
    assert next(event for event in steps if event["name"] == "optimizer")["args"] == {"step": 3}
