"""What may be removed: runs that were asked for, wholly Lockstep's, and nothing else."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from lockstep.errors import BadInput
from lockstep.runs.cleaning import chosen, own_paths, remove
from lockstep.runs.listing import ListedRun, State
from lockstep.train.folder_lock import holding
from tests.commands import CommandLine
from tests.unit.report.folders import make_run
from tests.unit.runs.test_listing import failed, killed

NOW = 1_000_000.0


def run(state: State, days: float) -> ListedRun:
    return ListedRun(folder=Path(f"{state}-{days}"), state=state, created=NOW - days * 86400, bytes=1)


EVERY = [run(state, days) for state in State for days in (1, 40)]


@pytest.mark.parametrize(
    ("states", "older_than", "expected"),
    [
        ([State.failed], None, ["failed-1", "failed-40"]),
        ([State.failed, State.unfinished], 30, ["failed-40", "unfinished-40"]),
        ([], 30, ["done-40", "stopped early-40", "failed-40", "unfinished-40"]),
        ([], 50, []),
        ([State.running, State.unreadable], None, []),
    ],
)
def test_what_is_chosen(states: list[State], older_than: float | None, expected: list[str]) -> None:
    picked = chosen(EVERY, states=states, older_than=older_than, now=NOW)
    assert [str(one.folder) for one in picked] == expected


def full(folder: Path) -> Path:
    """Make a run with everything that Lockstep may write into its folder."""
    make_run(folder, workers=2, strategy="ddp")
    make_run(folder / "attempt-1")
    for name in ("final", "best", "checkpoint-000012"):
        (folder / f"{name}.safetensors").touch()
    for name in ("rank-0.error.json", "fingerprints.jsonl", ".checkpoint-000013.safetensors.draft", ".run.json.123"):
        (folder / name).touch()
    (folder / "tensorboard").mkdir()
    (folder / "tensorboard" / "events.out.tfevents.1.host.2.3").touch()
    return folder


def test_a_run_is_removed_whole_and_its_run_json_last(tmp_path: Path) -> None:
    folder = full(tmp_path / "a")
    assert own_paths(folder)[-1] == folder / "run.json"
    remove(folder)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["notes.txt", "attempt-1/notes.txt", "tensorboard/plot.png", "mine/model.pt", "mine/"])
def test_a_folder_with_anything_else_in_it_stays_whole(tmp_path: Path, name: str) -> None:
    folder = full(tmp_path / "a")
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.mkdir() if name.endswith("/") else path.touch()
    before = sorted(folder.rglob("*"))
    with pytest.raises(BadInput, match=r"holds .*(notes|plot|mine).*, which Lockstep did not write, and is left alone"):
        remove(folder)
    assert sorted(folder.rglob("*")) == before


def test_links_are_never_followed(tmp_path: Path) -> None:
    folder, elsewhere = make_run(tmp_path / "a"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "run.json").touch()
    (folder / "attempt-1").symlink_to(elsewhere)
    with pytest.raises(BadInput, match="holds attempt-1, which Lockstep did not write"):
        remove(folder)
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(BadInput, match="link is a link, and is left alone"):
        remove(tmp_path / "link")
    assert (elsewhere / "run.json").exists()


def test_what_is_no_run_or_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "run.json").write_text("{}")
    with pytest.raises(BadInput, match="no schema version"):
        remove(tmp_path / "b")
    folder = make_run(tmp_path / "a")
    with holding(folder), pytest.raises(BadInput, match="another process is training in"):
        remove(folder)
    assert (folder / "run.json").exists()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a folder whose `runs` has one of each."""
    make_run(tmp_path / "runs" / "good")
    failed(tmp_path / "runs" / "bad")
    killed(tmp_path / "runs" / "cut")
    (failed(tmp_path / "runs" / "kept") / "notes.txt").touch()
    return tmp_path


def names(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "runs").iterdir())


def test_clean_lists_first_and_removes_when_told(home: Path, cli: CommandLine) -> None:
    done = cli("clean", "--failed", "--unfinished")
    assert done.code == 0, done.text
    assert "2 runs, " in done.out
    assert "would be removed: say --yes" in done.out
    assert "kept holds notes.txt, which Lockstep did not write" in done.err
    assert names(home) == ["bad", "cut", "good", "kept"]
    done = cli("clean", "--failed", "--unfinished", "--yes")
    assert "removed 2 runs" in done.out
    assert names(home) == ["good", "kept"]


def test_clean_by_age_in_json(home: Path, cli: CommandLine) -> None:
    told = json.loads(cli("clean", "--older-than", "1", "--json").out)
    started_days_ago = time.time() - 1_780_000_000.0 > 86400
    assert (len(told["runs"]), told["removed"]) == (3 if started_days_ago else 0, False)
    assert json.loads(cli("clean", "--older-than", "100000", "--yes", "--json").out)["runs"] == []
    assert names(home) == ["bad", "cut", "good", "kept"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "say which runs: --failed, --unfinished, --older-than DAYS"),
        (["--yes"], "say which runs: --failed, --unfinished, --older-than DAYS"),
        (["--older-than", "-1"], "--older-than -1.0: give a number of days, 0 or more"),
        (["nowhere", "--failed"], "nowhere does not exist: give the folder that holds runs"),
    ],
)
def test_clean_refuses_what_it_cannot_know(home: Path, cli: CommandLine, arguments: list[str], message: str) -> None:
    done = cli("clean", *arguments)
    assert done.code == 2, done.text
    assert message in done.err
    assert names(home) == ["bad", "cut", "good", "kept"]


@pytest.mark.usefixtures("home")
def test_runs_shows_a_row_for_each(cli: CommandLine) -> None:
    done = cli("runs")
    assert done.code == 0, done.text
    assert [done.out.count(state) for state in ("done", "failed", "unfinished")] == [1, 2, 1]
    assert done.out.count("6/6") == 4
    listed = json.loads(cli("runs", "--json").out)
    assert {Path(one["folder"]).name: one["state"] for one in listed}["cut"] == "unfinished"
    assert all(one["bytes"] > 0 for one in listed)
