"""Evaluations on the way: what they find is recorded, and they leave no trace in the training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lockstep.launch.start import start_run
from lockstep.report.collect import FinishedRun, read_finished
from lockstep.train.schema.rank_jsonl import evaluations_of, rank_path, read_rank
from lockstep.train.spec import RunSpec
from tests.commands import RECIPES, inside

RECIPE = str(RECIPES / "watched.py")
STEPS = 16


def train(out: Path, function: str = "", **changes: Any) -> FinishedRun:
    fields = {"recipe": f"{RECIPE}{function}", "threads": 1, "lanes": 4, "progress": False}
    return read_finished(start_run(RunSpec(**{**fields, **changes}), out))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """A run that never evaluates."""
    return train(tmp_path_factory.mktemp("plain") / "out", ":without")


WAYS = [
    {"strategy": "single"},
    {"strategy": "ddp", "workers": 2, "launcher": "spawn"},
    {"strategy": "dp", "workers": 2},
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way["strategy"])
def test_evaluations_change_no_bit(tmp_path: Path, plain: FinishedRun, way: dict[str, Any]) -> None:
    run = train(tmp_path / "out", eval_every=3, **way)
    assert run.result.digest == plain.result.digest
    assert run.losses == pytest.approx(plain.losses, rel=1e-12)
    assert [line.steps for line in run.evaluations] == [3, 6, 9, 12, 15, 16]
    assert run.evaluations[-1].metrics == run.result.metrics
    assert run.result.evaluation_seconds > 0


def test_the_stock_strategy_is_not_disturbed_either(tmp_path: Path) -> None:
    way: dict[str, Any] = {"strategy": "torch-ddp", "workers": 2, "launcher": "spawn"}
    without = train(tmp_path / "without", ":without", **way)
    watched = train(tmp_path / "watched", eval_every=2, **way)
    assert watched.result.digest == without.result.digest


def test_the_metrics_are_the_same_on_any_number_of_workers_and_on_every_rank(tmp_path: Path) -> None:
    """Although this evaluation draws random numbers: they belong to the chunk, not to the rank."""
    alone = train(tmp_path / "alone", eval_every=5)
    two = train(tmp_path / "two", eval_every=5, strategy="ddp", workers=2, launcher="spawn")
    assert [line.metrics for line in two.evaluations] == [line.metrics for line in alone.evaluations]
    ranks = [evaluations_of(read_rank(rank_path(two.folder, rank))) for rank in range(2)]
    assert [line.metrics for line in ranks[0]] == [line.metrics for line in ranks[1]]


def test_a_run_evaluates_after_every_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    done = inside(["run", RECIPE, "--threads", "1", "--out", "out"], tmp_path, monkeypatch, capfd)
    assert done.code == 0, done.text
    assert [line.steps for line in read_finished(tmp_path / "out").evaluations] == [8, 16]
    assert "evaluation after steps" in done.out
    assert "step 8/16, loss" in done.err
    assert "accuracy 0." in done.err


def test_json_has_every_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", RECIPE, "--threads", "1", "--eval-every", "10", "--json", "--out", "out"]
    done = inside(arguments, tmp_path, monkeypatch, capfd)
    shown = json.loads(done.out)
    assert [line["steps"] for line in shown["evaluations"]] == [10, 16]
    assert shown["evaluations"][-1]["metrics"] == shown["result"]["metrics"]


def test_a_comparison_evaluates_only_at_the_end(tmp_path: Path) -> None:
    assert [line.steps for line in train(tmp_path / "out").evaluations] == [STEPS]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([RECIPE, "--eval-every", "0"], "--eval-every 0: at least 1 step is needed between evaluations"),
        ([f"{RECIPE}:without", "--eval-every", "2"], "--eval-every 2: the recipe watched has no evaluation; give it"),
    ],
)
def test_refusals_before_anything_starts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    done = inside(["run", *arguments, "--out", "out"], tmp_path, monkeypatch, capfd)
    assert done.code == 2, done.text
    assert message in done.err
    assert not (tmp_path / "out").exists()
