"""The chart of CPUs: all ranks together, each as at its last look."""

from __future__ import annotations

from pathlib import Path

from lockstep.report.charts import all_charts
from lockstep.report.charts.cpus import MOST, together
from lockstep.report.gather import gather
from lockstep.train.schema.rank_jsonl import UsageLine
from tests.unit.report.folders import make_run


def looks(*pairs: tuple[float, float]) -> list[UsageLine]:
    return [UsageLine(time=at, cpus=cpus, memory=1) for at, cpus in pairs]


def test_ranks_are_added_as_at_their_last_look() -> None:
    ranks = [looks((10.0, 1.0), (12.0, 3.0)), looks((11.0, 0.5), (13.0, 0.0))]
    assert together(ranks) == [(1.0, 1.5), (2.0, 3.5), (3.0, 3.0)]
    assert together([looks((1.0, 1.0)), []]) == []
    assert together([]) == []


def test_no_more_is_drawn_than_a_screen_shows_and_no_nonsense() -> None:
    assert len(together([looks(*((float(at), 1.0) for at in range(10_000)))])) == MOST
    assert together([looks((0.0, 1.0), (1.0, 1e17))]) == [(0.0, 1.0)]


def test_the_chart_is_in_the_report(tmp_path: Path) -> None:
    make_run(tmp_path / "ddp-1", strategy="ddp", workers=2)
    chart = next(chart for chart in all_charts(gather([tmp_path])) if chart.key == "cpus")
    assert chart.lines == (("ddp", "1.50", "512 MiB", "11"),)
    assert "CPUs in use by seconds" in chart.words
