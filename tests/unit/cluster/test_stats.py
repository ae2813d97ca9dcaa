"""How a run does: from records to bars and one line of advice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lockstep.cluster.run_stats import RankStats, RunStats, mean_cpus, run_stats
from lockstep.cluster.stats_text import advice, bar, stats_lines
from lockstep.errors import BadInput
from lockstep.runs.listing import ListedRun, State
from lockstep.train.schema.rank_jsonl import UsageLine
from tests.unit.report.folders import make_run


def rank(number: int = 0, **changes: Any) -> RankStats:
    values: dict[str, Any] = {
        "rank": number,
        "host": "n1",
        "cpus": 4,
        "cpus_used": 3.5,
        "memory": 2**30,
        "gpu": None,
        "gpu_memory": None,
        "step_seconds": 0.1,
        "work_seconds": 0.08,
        "parts": {"data": 0.1, "forward": 0.4, "backward": 0.5},
    }
    return RankStats(**values | changes)


def stats(*ranks: RankStats) -> RunStats:
    run = ListedRun(folder=Path("runs/x"), state=State.running, created=0.0, bytes=0, recipe="r", strategy="ddp")
    return RunStats(run=run, job="12", hosts=("n1",), samples_per_second=10.0, seconds_left=65.0, ranks=ranks)


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([rank()], "nothing stands out"),
        ([], "nothing was measured yet"),
        ([rank(cpus_used=None, step_seconds=None)], "nothing was measured yet"),
        ([rank(cpus_used=1.1)], "4 CPUs asked for each worker, 1.1 used: ask for 1, or use the rest"),
        ([rank(cpus_used=1.4)], "4 CPUs asked for each worker, 1.4 used: ask for 2"),
        ([rank(cpus=1, cpus_used=0.2)], "nothing stands out"),
        ([rank(parts={"data": 0.6, "forward": 0.4})], "60 % of a step is spent on data"),
        ([rank(0), rank(1, work_seconds=0.2)], "rank 1 on n1 computes 2.5 times as long as the others"),
        (
            [rank(gpu=0.2, parts={"data": 0.7, "forward": 0.3})],
            "the GPUs compute 20 % of the time; most of a step is data",
        ),
    ],
)
def test_advice(ranks: list[RankStats], words: str) -> None:
    assert words in advice(stats(*ranks))


def test_bars() -> None:
    assert [bar(part) for part in (0.0, 0.5, 1.0, 7.0)] == [
        "[" + "#" * n + "." * (20 - n) + "]" for n in (0, 10, 20, 20)
    ]


def test_lines() -> None:
    text = "\n".join(stats_lines(stats(rank(0), rank(1, work_seconds=0.09, gpu=0.5, gpu_memory=2**30))))
    assert "runs/x: job 12, running, r, ddp, 0 workers on n1" in text
    assert "65.0 s left" in text
    assert "    CPU     [##################..]  88 %  3.5 of 4" in text
    assert "    GPU     [##########..........]  50 %  1.00 GiB" in text
    assert "slowest rank: 1 on n1, 90.0 ms of work in a step" in text


def test_a_mean_is_one_over_time() -> None:
    lines = [UsageLine(time=at, cpus=cpus, memory=1) for at, cpus in ((0.0, 9.0), (1.0, 1.0), (4.0, 2.0))]
    assert mean_cpus(lines) == pytest.approx((1.0 + 3 * 2.0) / 4)
    assert mean_cpus(lines[:1]) == 9.0
    assert mean_cpus([]) is None


def test_a_folder_is_read_without_belief(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", strategy="ddp", workers=2, state="a")
    read = run_stats(folder)
    assert [one.rank for one in read.ranks] == [0, 1]
    assert read.as_json()["run"]["state"] == "done"
    (folder / "rank-0.jsonl").write_text("no\n")
    with pytest.raises(BadInput, match=r"rank-0\.jsonl, line 1"):
        run_stats(folder)
    with pytest.raises(BadInput, match="does not exist"):
        run_stats(tmp_path)
