"""Jobs of the queue and their run folders; the real queue is in tests/system/test_batch_jobs.py."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from lockstep.cluster.jobs import folder_of, is_job_number, job_rows
from lockstep.cluster.jobs_table import cells
from lockstep.errors import BadInput
from lockstep.train.schema.scalars import SCHEMA
from tests.commands import CommandLine
from tests.unit.report.folders import make_run


def queue(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Put a squeue on the path that prints this: no second user has jobs here."""
    program = folder / "bin" / "squeue"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")


def test_a_job_of_somebody_else_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue(tmp_path, monkeypatch, "7|somebody|RUNNING|n1|1:00|/tmp|None|train")
    with pytest.raises(BadInput, match="job 7 is of user somebody: only your own jobs are shown"):
        folder_of("7", tmp_path / "runs")


def test_a_job_that_waits_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import getpass

    queue(tmp_path, monkeypatch, f"7|{getpass.getuser()}|PENDING||1:00|{tmp_path}|Resources|a|b")
    with pytest.raises(BadInput, match=r"job 7 is PENDING \(Resources\), and has no run in"):
        folder_of("7", tmp_path / "runs")
    ((job, stats),) = job_rows(tmp_path / "runs")
    assert job is not None
    assert (job.name, stats) == ("a|b", None)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=r"has no run in runs yet$"):
        folder_of("7", Path("runs"))


def test_a_job_without_a_reason_shows_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import getpass

    queue(tmp_path, monkeypatch, f"7|{getpass.getuser()}|PENDING||1:00|{tmp_path}|None|train")
    ((job, stats),) = job_rows(tmp_path / "runs")
    assert cells(job, stats)[2] == "pending"


def test_a_run_is_found_by_the_number_at_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue(tmp_path, monkeypatch, "")
    folder = make_run(tmp_path / "runs" / "train-7", strategy="single", workers=1, state="a")
    assert folder_of("7", tmp_path / "runs") == folder
    with pytest.raises(BadInput, match="no job 8 is in the queue"):
        folder_of("8", tmp_path / "runs")


def test_numbers_and_folders_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "12").mkdir()
    assert [is_job_number(text) for text in ("7", "7_3", "12", "runs/7", "x")] == [True, True, False, False, False]


def test_bad_input_of_the_commands(cli: CommandLine, tmp_path: Path) -> None:
    done = cli("stats", "nothing")
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    folder = make_run(tmp_path / "run", strategy="single", workers=1, state="a")
    assert cli("stats", str(folder), "--watch").code == 0
    assert msgspec.json.decode(cli("stats", str(folder), "--json").out)["run"]["state"] == "done"
    text = (folder / "run.json").read_text()
    (folder / "run.json").write_text(text.replace(f'"schema": {SCHEMA}', '"schema": 3'))
    done = cli("stats", str(folder))
    assert done.code == 2
    assert "has schema version 3" in done.err
    done = cli("sbatch", "no.py", "--dry-run")
    assert "the recipe file no.py does not exist" in done.err
    done = cli("sbatch", "mpl", "--dry-run")
    assert "did you mean 'mlp'" in done.err
    done = cli("sbatch", "mlp", "--workers", "4", "--dry-run")
    assert "--workers is set by the batch file: they are --nodes times --tasks-per-node" in done.err
    done = cli("sbatch", "mlp", "--submit", env={"PATH": str(tmp_path)})
    assert "sbatch is not installed" in done.err
    assert not list(tmp_path.glob("*.sbatch"))
    (tmp_path / "mlp.sbatch").write_text("mine")
    done = cli("sbatch", "mlp")
    assert "was not written by lockstep sbatch" in done.err
    assert cli("run", "mlp", "--continue").code == 2
