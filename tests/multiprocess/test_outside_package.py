"""A package of somebody else adds a strategy, a launcher and a peer; a damaged one disturbs nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lockstep.report.collect import read_finished
from tests import toy
from tests.commands import TINY, CommandLine
from tests.multiprocess.test_compare import rows_of

SHORT = ("--workers", "2", "--steps", "3", "--threads", "1")


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return toy.install(tmp_path / "site")


def test_its_strategy_trains_in_the_workers(tmp_path: Path, env: dict[str, str], cli: CommandLine) -> None:
    done = cli.apart("run", "mlp", *SHORT, "--strategy", "toy", "--out", "out", env=env)
    assert done.code == 0, done.text
    run = read_finished(tmp_path / "out")
    assert run.setup.spec.strategy == "toy"
    assert run.result.exchange == "toy all-reduce"
    assert len(run.steps) == 2


def test_its_launcher_starts_the_workers(tmp_path: Path, env: dict[str, str], cli: CommandLine) -> None:
    done = cli.apart("run", "mlp", *SHORT, "--launcher", "toy", "--out", "out", env=env)
    assert done.code == 0, done.text
    run = read_finished(tmp_path / "out")
    assert run.setup.spec.launcher == "toy"
    assert run.result.exchange == "arena"
    assert len(run.steps) == 2


@pytest.mark.soak  # each of its parts is tried above
def test_all_of_it_side_by_side_with_a_damaged_package(tmp_path: Path, env: dict[str, str], cli: CommandLine) -> None:
    toy.write_metadata(tmp_path / "site", "lockstep-damaged", {"lockstep.strategies": {"damaged": "gone:STRATEGY"}})
    command = ("compare", TINY, *SHORT, "--strategies", "toy,toy-peer,damaged", "--launcher", "toy")
    done = cli.apart(*command, "--repeats", "1", "--json", env=env)
    assert done.code == 0, done.text
    rows = rows_of(done)
    assert rows["toy"]["repeats"] == rows["toy-peer"]["repeats"] == 1
    assert rows["toy"]["exchange"] == "toy all-reduce"
    assert "other samples" in rows["toy-peer"]["parity"]
    reason = "strategy 'damaged' of package lockstep-damaged 1.0 (gone:STRATEGY) cannot be loaded"
    assert rows["damaged"]["why_not"].startswith(f"{reason} (ModuleNotFoundError: No module named 'gone')")
    decision = json.loads(cli.apart("doctor", "--json", env=env).out)
    assert decision["strategies"]["toy"] == decision["launchers"]["toy"] == decision["peers"]["toy-peer"] == "yes"
    assert decision["strategies"]["damaged"].startswith(reason)
    told = " ".join(cli.apart("run", "--help", env={**env, "COLUMNS": "300"}).out.split())
    assert "torch-pipeline, damaged, toy, lightning, accelerate, tensorflow or toy-peer" in told
    assert "inline, spawn, torchrun, srun, mpirun or toy" in told
