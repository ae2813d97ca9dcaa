"""What is said of each run folder: its state, how far it came, its size; and that nothing is believed or changed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from msgspec import structs

from lockstep.errors import BadInput
from lockstep.runs.listing import State, list_runs, listed
from lockstep.runs.runs_table import row
from lockstep.train.folder_lock import holding, is_held, starting
from lockstep.train.records import write_document
from lockstep.train.schema.plan_json import ComparisonPlan, Way
from lockstep.train.schema.result_json import Failed, read_result
from lockstep.train.schema.run_json import read_setup
from tests.unit.report.folders import make_run

WHY = "rank 1 on host-a failed at step 3\nTraceback ..."


def failed(folder: Path) -> Path:
    make_run(folder)
    write_document(folder / "result.json", Failed(rank=0, step=3, finite=True, why=WHY))
    return folder


def killed(folder: Path) -> Path:
    make_run(folder)
    (folder / "result.json").unlink()
    return folder


def test_a_run_that_is_done(tmp_path: Path) -> None:
    run = listed(make_run(tmp_path / "a", strategy="ddp", workers=2, threads=3))
    result = read_result(tmp_path / "a")
    assert run.state is State.done
    assert run.threads == 3
    assert (run.recipe, run.strategy, run.workers, run.steps, run.planned) == ("tiny", "ddp", 2, 6, 6)
    assert run.loss == 2.0
    assert run.digest == getattr(result, "digest", None)
    assert run.bytes == sum(path.stat().st_size for path in (tmp_path / "a").iterdir())


def test_a_run_that_stopped_early(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a")
    write_document(folder / "result.json", structs.replace(read_result(folder), stopped="accuracy has not improved"))
    assert (listed(folder).state, listed(folder).why) == (State.stopped, "accuracy has not improved")


def test_a_run_that_failed_says_why(tmp_path: Path) -> None:
    run = listed(failed(tmp_path / "a"))
    assert (run.state, run.why) == (State.failed, "rank 1 on host-a failed at step 3")
    assert run.steps == 6
    assert run.loss == pytest.approx(2.0)


def test_a_run_that_was_killed_in_the_middle_of_a_line(tmp_path: Path) -> None:
    folder = killed(tmp_path / "a")
    path = folder / "rank-0.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.rindex(b'"kind":"end"')])  # half of the last line
    run = listed(folder)
    assert (run.state, run.steps, run.digest) == (State.unfinished, 6, "")


def test_a_run_whose_workers_never_began(tmp_path: Path) -> None:
    """Its folder is there a moment before anybody holds it: until a minute has passed it may be starting."""
    folder = killed(tmp_path / "a")
    (folder / "rank-0.jsonl").unlink()
    run = listed(folder)
    assert (run.state, run.steps, run.loss) == (State.running, 0, None)
    for path in (*folder.iterdir(), folder):
        os.utime(path, (1.0, 1.0))
    assert listed(folder).state is State.unfinished


def test_only_the_end_of_long_records_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.runs.listing.TAIL", 1024)
    assert listed(killed(tmp_path / "a")).steps == 6


def test_a_run_that_goes_on(tmp_path: Path) -> None:
    folder = killed(tmp_path / "a")
    with holding(folder):
        assert listed(folder).state is State.running, "rank 0 trains"
    with starting(folder):
        assert listed(folder).state is State.running, "the workers are not there yet"
    assert listed(folder).state is State.unfinished


def test_looking_does_not_keep_a_run_from_starting(tmp_path: Path) -> None:
    folder = killed(tmp_path / "a")
    assert is_held(folder) is False
    with holding(folder), starting(folder):
        assert is_held(folder) is True


def test_without_locks_a_run_that_wrote_lately_counts_as_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(descriptor: int, kind: int) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("lockstep.train.folder_lock.fcntl.flock", no_locks)
    folder = killed(tmp_path / "a")
    assert listed(folder).state is State.running
    for path in (*folder.iterdir(), folder):
        os.utime(path, (1.0, 1.0))
    assert listed(folder).state is State.unfinished


def test_a_folder_of_another_version_is_unreadable(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a")
    setup = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**setup, "schema": 1}))
    run = listed(folder)
    assert run.state is State.unreadable
    assert "has schema version 1" in run.why
    assert row(run, tmp_path)[:2] == ["a", "[yellow]unreadable[/]"]


def test_all_runs_of_a_folder_and_of_its_comparisons(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    make_run(tmp_path / "compared" / "ddp-1")
    (tmp_path / "notes").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    spec = read_setup(tmp_path / "a").spec
    plan = ComparisonPlan(
        title="tiny",
        command="lockstep compare",
        ways=(Way(name="ddp", spec=spec),),
        repeats=1,
        time_limit=None,
        source="",
        versions={},
    )
    write_document(tmp_path / "compared" / "plan.json", plan)
    shutil.copytree(tmp_path / "a", tmp_path / "z" / "hidden")  # neither a run nor a comparison
    names = [str(run.folder.relative_to(tmp_path)) for run in list_runs(tmp_path)]
    assert names == ["a", "compared/ddp-1"]
    assert [run.folder for run in list_runs(tmp_path / "a")] == [tmp_path / "a"]
    with pytest.raises(BadInput, match="missing does not exist: give the folder that holds runs"):
        list_runs(tmp_path / "missing")
