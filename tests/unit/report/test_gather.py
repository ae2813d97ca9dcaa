"""Reports from folders of earlier runs: what belongs together, and what may not be put side by side."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from lockstep.errors import BadInput
from lockstep.report.gather import gather
from lockstep.train.records import write_document
from lockstep.train.schema.plan_json import ComparisonPlan, Way
from lockstep.train.schema.result_json import Failed
from tests.commands import CommandLine
from tests.unit.report.folders import change, make_run
from tests.unit.report.values import setup


def test_repeats_become_rows(tmp_path: Path) -> None:
    for repeat, slower in ((1, 1.0), (2, 1.2), (3, 0.9)):
        make_run(tmp_path / f"ddp-{repeat}", strategy="ddp", workers=2, slower=slower)
        make_run(tmp_path / f"single-{repeat}", strategy="single", workers=1, slower=2 * slower)
    make_run(tmp_path / "single-wide-1", strategy="single", workers=1, threads=2)
    comparison = gather([tmp_path])
    assert [(row.name, row.repeats) for row in comparison.rows] == [("single", 3), ("single, 2 threads", 1), ("ddp", 3)]
    assert comparison.rows[2].speed_up == pytest.approx(2.0)
    assert comparison.settings["global_batch"] == 32
    assert len(comparison.runs["ddp"]) == 3


def test_rows_from_two_machines(tmp_path: Path) -> None:
    here = make_run(tmp_path / "a" / "run", strategy="ddp", workers=2)
    there = make_run(tmp_path / "b" / "run", strategy="ddp", workers=2, host="host-b", slower=1.5)
    change(there / "run.json", cpu="Slow CPU")
    comparison = gather([here, there])
    assert [row.name for row in comparison.rows] == ["ddp, on host-a", "ddp, on host-b"]
    assert comparison.rows[1].notes == ("started on host-b (Slow CPU), the first row on host-a",)
    assert comparison.hosts == ("host-a", "host-b")


def test_more_that_tells_rows_apart(tmp_path: Path) -> None:
    make_run(tmp_path / "1", strategy="ddp", workers=2)
    make_run(tmp_path / "2", strategy="ddp", workers=4)
    other = make_run(tmp_path / "3", strategy="ddp", workers=4)
    change(other / "result.json", backend="shm")
    comparison = gather([tmp_path])
    assert {row.name for row in comparison.rows} == {
        "ddp, 2 workers, gloo",
        "ddp, 4 workers, gloo",
        "ddp, 4 workers, shm",
    }


@pytest.mark.parametrize(
    ("change_recipe", "words"),
    [
        ({"name": "other"}, "recipe tiny and other"),
        ({"global_batch": 64}, "global batch 32 and 64"),
        ({"seed": 1, "global_batch": 64}, "global batch 32 and 64, seed 0 and 1"),
        ({"source": "f" * 64}, "recipe file with SHA-256 aaaaaaaaaaaa and ffffffffffff"),
    ],
)
def test_what_is_not_comparable(tmp_path: Path, change_recipe: dict[str, object], words: str) -> None:
    one = make_run(tmp_path / "one", strategy="single", workers=1, recipe={"source": "a" * 64})
    two = make_run(tmp_path / "two", strategy="ddp", workers=2, recipe={"source": "a" * 64, **change_recipe})
    with pytest.raises(BadInput, match=f"one and .*two cannot be compared: {words}. Give folders of runs"):
        gather([one, two])


def test_other_samples(tmp_path: Path) -> None:
    one, two = (make_run(tmp_path / name, strategy="single", workers=1) for name in ("one", "two"))
    plan = json.loads((two / "run.json").read_text())["plan"]
    change(two / "run.json", plan={**plan, "samples": plan["samples"] + 1})
    with pytest.raises(BadInput, match=f"samples {plan['samples']} and {plan['samples'] + 1}"):
        gather([one, two])


def test_other_lanes_are_rows_of_their_own(tmp_path: Path) -> None:
    for name, strategy, lanes in (("a", "single", 4), ("b", "ddp", 4), ("c", "ddp", 8), ("d", "ddp", 8)):
        folder = make_run(tmp_path / name, strategy=strategy, workers=1 + (strategy == "ddp"))
        plan = json.loads((folder / "run.json").read_text())["plan"]
        change(folder / "run.json", plan={**plan, "lanes": lanes})
    comparison = gather([tmp_path])
    assert comparison.title.startswith("tiny: 4 and 8 lanes")
    rows = {row.name: row for row in comparison.rows}
    assert {name: row.repeats for name, row in rows.items()} == {
        "single, 4 lanes": 1,
        "ddp, 4 lanes": 1,
        "ddp, 8 lanes": 2,
    }
    assert rows["ddp, 4 lanes"].parity == "same bits"
    assert rows["ddp, 8 lanes"].parity == "other number of lanes: the others with 8 lanes are compared with this"


def test_a_failed_run_is_a_row_with_its_reason(tmp_path: Path) -> None:
    make_run(tmp_path / "single-1", strategy="single", workers=1)
    make_run(tmp_path / "ddp-1", strategy="ddp", workers=2)
    for name, strategy in (("ddp-2", "ddp"), ("dp-1", "dp"), ("torch-ddp-1", "torch-ddp")):
        (tmp_path / name).mkdir()
        write_document(tmp_path / name / "run.json", setup(strategy, 2))
    why = "rank 1 on host-a failed at step 3:\nTraceback\n  x\nValueError: bad"
    for name in ("ddp-2", "dp-1"):
        write_document(tmp_path / name / "result.json", Failed(rank=1, step=3, finite=True, why=why))
    (tmp_path / "dp-1" / "rank-0.jsonl").touch()  # it died while it started
    rows = {row.name: row for row in gather([tmp_path]).rows}
    assert set(rows) == {"single", "ddp", "dp", "torch-ddp"}
    assert rows["dp"].why_not == ("rank 1 on host-a failed at step 3: ValueError: bad (traceback in dp-1/result.json)")
    assert "torch-ddp-1 has no result.json" in rows["torch-ddp"].why_not
    assert rows["ddp"].repeats == 1
    assert "ValueError: bad" in " ".join(rows["ddp"].notes)


def test_the_plan_tells_of_ways_without_a_folder(tmp_path: Path) -> None:
    make_run(tmp_path / "single-1", strategy="single", workers=1)
    ways = tuple(Way(name=name, spec=setup(name, 1).spec) for name in ("single", "torch-ddp", "dp"))
    command = "lockstep compare tiny.py"
    plan = ComparisonPlan(
        title="tiny", command=command, ways=ways, repeats=2, time_limit=None, source="", versions={"torch": "2.13.0"}
    )
    write_document(tmp_path / "plan.json", plan)
    (tmp_path / "comparison.json").write_text(
        json.dumps({"rows": [{"name": "torch-ddp", "why_not": "needs at least 2 workers"}]})
    )
    rows = {row.name: row.why_not for row in gather([tmp_path]).rows}
    assert rows == {"single": "", "torch-ddp": "needs at least 2 workers", "dp": "not run"}
    assert gather([tmp_path]).settings["command"] == "lockstep compare tiny.py"
    (tmp_path / "plan.json").write_text("{")
    assert [row.name for row in gather([tmp_path]).rows] == ["single"]


def test_the_command(tmp_path: Path, cli: CommandLine) -> None:
    make_run(tmp_path / "all" / "single-1", strategy="single", workers=1)
    make_run(tmp_path / "all" / "ddp-1", strategy="ddp", workers=2, slower=0.5)
    done = cli("report", "all")
    assert done.code == 0, done.text
    assert "report: all/report.html" in done.out
    assert "Fastest" in done.out
    made = {path.name for path in (tmp_path / "all").iterdir() if path.is_file()}
    assert made == {"report.html", "comparison.md", "comparison.json", "comparison.svg", "trace.json"}
    done = cli("report", "all/single-1", "all/ddp-1", "--out", "new", "--json")
    assert done.code == 0, done.text
    assert [row["name"] for row in json.loads(done.out)["rows"]] == ["single", "ddp"]
    assert (tmp_path / "new" / "report.html").is_file()


def test_a_folder_whose_name_is_no_text(tmp_path: Path, cli: CommandLine) -> None:
    name = os.fsdecode(b"all-\xff")
    make_run(tmp_path / name / "single-1", strategy="single", workers=1)
    (tmp_path / name / "ddp-1").mkdir()
    write_document(tmp_path / name / "ddp-1" / "run.json", setup("ddp", 2))
    for extra in ([], ["--json"]):
        done = cli("report", name, *extra)
        assert done.code == 0, done.text
        assert "all-\\udcff" in (json.loads(done.out)["out"] if extra else done.out)
    assert "all-\\udcff/ddp-1 has no result.json" in (tmp_path / name / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none"], "none does not exist"),
        (["file"], "file is not a folder"),
        (["empty"], "empty is not a run folder (it has no run.json), and holds none"),
        (["run", "--out", "empty"], "the output folder empty exists already"),
        (["cut"], "cut/rank-0.jsonl has 1 of 6 steps and no end line: lines were lost after the run"),
        (["newer"], "newer/run.json has schema version 9999 (Lockstep 0.1.0), and this is Lockstep 0.1.0, which reads"),
    ],
)
def test_refused(arguments: list[str], words: str, tmp_path: Path, cli: CommandLine) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    make_run(tmp_path / "run", strategy="single", workers=1)
    cut = make_run(tmp_path / "cut", strategy="single", workers=1) / "rank-0.jsonl"
    cut.write_text(cut.read_text()[:600])
    change(make_run(tmp_path / "newer", strategy="single", workers=1) / "run.json", schema=9999)
    done = cli("report", *arguments)
    assert done.code == 2, done.text
    assert words in done.err


def test_reports_among_the_folders_are_left_out(tmp_path: Path, cli: CommandLine) -> None:
    """`lockstep report runs/*` twice: the second time the first report is among them."""
    make_run(tmp_path / "runs" / "a", strategy="single", workers=1)
    make_run(tmp_path / "runs" / "b", strategy="ddp", workers=2)
    for out in ("runs/report-1", "runs/report-2"):
        folders = sorted(f"runs/{path.name}" for path in (tmp_path / "runs").iterdir())
        done = cli("report", *folders, "--out", out)
        assert done.code == 0, done.text


def test_a_run_that_failed_before_its_first_step_is_a_row(tmp_path: Path, cli: CommandLine) -> None:
    folder = make_run(tmp_path / "runs" / "a", strategy="ddp", workers=2)
    for path in (*folder.glob("rank-*.jsonl"), folder / "fingerprints.jsonl"):
        path.write_bytes(b"")
    write_document(folder / "result.json", Failed(rank=1, step=-1, finite=True, why="rank 1 on a failed: no weights"))
    make_run(tmp_path / "runs" / "b", strategy="single", workers=1)
    done = cli("report", "runs/a", "runs/b")
    assert done.code == 0, done.text
    assert "did not run ddp: rank 1 on a failed: no weights" in done.out
