"""Evaluations on the way: what they find is recorded, and they leave no trace in the training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from lockstep.errors import BadInput, RunFailed
from lockstep.launch.start import start_run
from lockstep.report.collect import FinishedRun, read_finished
from lockstep.train.checkpoint_folder import kept
from lockstep.train.resume import read_standing, resumed_spec
from lockstep.train.schema.rank_jsonl import evaluations_of, rank_path, read_rank, steps_of
from lockstep.train.spec import RunSpec
from tests.commands import RECIPES, CommandLine

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


def test_a_run_evaluates_after_every_epoch(tmp_path: Path, cli: CommandLine) -> None:
    done = cli("run", RECIPE, "--threads", "1", "--out", "out")
    assert done.code == 0, done.text
    assert [line.steps for line in read_finished(tmp_path / "out").evaluations] == [8, 16]
    assert "evaluation after steps" in done.out
    assert "step 8/16, loss" in done.err
    assert "accuracy 0." in done.err


def test_json_has_every_evaluation(cli: CommandLine) -> None:
    arguments = ["run", RECIPE, "--threads", "1", "--eval-every", "10", "--json", "--out", "out"]
    done = cli(*arguments)
    shown = json.loads(done.out)
    assert [line["steps"] for line in shown["evaluations"]] == [10, 16]
    assert shown["evaluations"][-1]["metrics"] == shown["result"]["metrics"]


def test_a_comparison_evaluates_only_at_the_end(tmp_path: Path) -> None:
    assert [line.steps for line in train(tmp_path / "out").evaluations] == [STEPS]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([RECIPE, "--eval-every", "0"], "--eval-every 0: give a number of steps, at least 1"),
        ([f"{RECIPE}:without", "--eval-every", "2"], "--eval-every: the recipe watched has no evaluation. Give it one"),
    ],
)
def test_refusals_before_anything_starts(tmp_path: Path, arguments: list[str], message: str, cli: CommandLine) -> None:
    done = cli("run", *arguments, "--out", "out")
    assert done.code == 2, done.text
    assert message in done.err
    assert not (tmp_path / "out").exists()


BEST: dict[str, Any] = {"eval_every": 1, "keep_best": "accuracy"}
"""The recipe `peaks` is best after 4 steps."""
TWO: dict[str, Any] = {"strategy": "ddp", "workers": 2, "launcher": "spawn"}


@pytest.fixture(scope="module")
def peaked(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """A run that nothing disturbs, with patience for 3 evaluations."""
    return train(tmp_path_factory.mktemp("peaked") / "out", ":peaks", **BEST, **TWO, patience=3, checkpoint_every=5)


def test_the_best_weights_are_those_of_the_best_step(tmp_path: Path, plain: FinishedRun) -> None:
    whole = train(tmp_path / "whole", ":peaks", **BEST, **TWO)
    assert whole.result.digest == plain.result.digest, "writing the best weights changes no bit"
    assert whole.result.best is not None
    assert (whole.result.best.metric, whole.result.best.steps) == ("accuracy", 4)
    assert whole.result.best.value == pytest.approx(0.9)
    short = train(tmp_path / "short", ":peaks", steps=4)
    best, final = load_file(whole.folder / "best.safetensors"), load_file(short.folder / "final.safetensors")
    assert best.keys() == final.keys()
    assert all(torch.equal(best[name], final[name]) for name in best)


def test_a_run_stops_when_nothing_improves(peaked: FinishedRun, tmp_path: Path) -> None:
    assert peaked.result.steps == 7
    assert peaked.result.stopped == "accuracy has not improved for 3 evaluations, after 7 steps"
    assert len(peaked.losses) == 7
    assert [line.steps for line in peaked.evaluations] == [1, 2, 3, 4, 5, 6, 7]
    assert peaked.fingerprints[-1].step == 6, "as of any last step"
    assert kept(peaked.folder)[0].name == "checkpoint-000007.safetensors"
    assert peaked.result.digest == train(tmp_path / "out", ":peaks", steps=7).result.digest


def test_a_resumed_run_stops_where_an_undisturbed_one_does(tmp_path: Path, peaked: FinishedRun) -> None:
    """It died after 5 steps: the best value and one evaluation without a better one are in the checkpoint."""
    out = tmp_path / "out"
    with pytest.raises(RunFailed, match=r"rank 1 .* failed at step 5"):
        train(out, ":peaks_and_dies", **BEST, **TWO, patience=3, checkpoint_every=5)
    changes = {"recipe": f"{RECIPE}:peaks", "workers": 1, "strategy": "single"}
    run = read_finished(start_run(resumed_spec(read_standing(out), changes), out))
    assert [one.step for one in run.result.resumed] == [5]
    assert (run.result.steps, run.result.stopped) == (peaked.result.steps, peaked.result.stopped)
    assert run.result.best == peaked.result.best
    assert run.result.digest == peaked.result.digest
    assert (out / "best.safetensors").read_bytes() == (peaked.folder / "best.safetensors").read_bytes()
    assert [line.steps for line in run.evaluations] == [1, 2, 3, 4, 5, 6, 7]


def test_a_run_that_stopped_early_is_complete(peaked: FinishedRun) -> None:
    with pytest.raises(BadInput, match=r"is complete: accuracy has not improved for 3 evaluations.*more than 3"):
        start_run(resumed_spec(read_standing(peaked.folder), {}), peaked.folder)


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (":without", ["--keep-best", "accuracy"], "--keep-best accuracy: the recipe watched has no evaluation"),
        (":without", ["--patience", "3"], "--patience: the recipe watched has no evaluation"),
        ("", ["--patience", "3"], "--patience needs the metric to wait for: give --keep-best too"),
        ("", ["--keep-best", "accuracy", "--patience", "0"], "--patience 0: give a number of evaluations, at least 1"),
        ("", ["--keep-best", ""], "--keep-best is empty"),
        (
            "",
            ["--keep-best", "x", "--strategy", "accelerate"],
            "strategy accelerate runs its own loop",
        ),
    ],
)
def test_what_cannot_be_followed_is_refused_before_anything_starts(
    tmp_path: Path, function: str, arguments: list[str], message: str, cli: CommandLine
) -> None:
    done = cli("run", f"{RECIPE}{function}", *arguments, "--out", "out")
    assert done.code == 2, done.text
    assert message in done.err
    assert not (tmp_path / "out").exists()


def test_a_metric_that_is_not_there_is_named_before_the_first_step(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"--keep-best precision: the recipe's evaluate returns accuracy, loss"):
        train(tmp_path / "out", keep_best="precision", monitored=True)
    assert not steps_of(read_rank(rank_path(tmp_path / "out", 0)))


@pytest.mark.parametrize("strategy", ["layers", "pipeline"])
def test_a_cut_model_is_evaluated_and_followed_alike(tmp_path: Path, plain: FinishedRun, strategy: str) -> None:
    """The last stage has the metrics, the first one writes, calls back and decides when to stop.

    The recipe's evaluation calls the model twice, once through its loss.
    """
    options: dict[str, Any] = {"eval_every": 3, "keep_best": "accuracy", "monitored": True, "tensorboard": True}
    whole = train(tmp_path / "whole", ":also_by_loss", **options)
    cut = train(tmp_path / "cut", ":also_by_loss", **options, strategy=strategy, workers=2, launcher="spawn")
    assert cut.result.digest == whole.result.digest == plain.result.digest
    assert [line.metrics for line in cut.evaluations] == [line.metrics for line in whole.evaluations]
    assert cut.result.best == whole.result.best
    weights = [load_file(run.folder / "best.safetensors") for run in (cut, whole)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[1])
    assert len((cut.folder / "StepDone.jsonl").read_text().splitlines()) == STEPS


def test_an_evaluation_that_a_cut_model_cannot_do_is_refused_before_the_first_step(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"must call model\(\.\.\.\) just once"):
        train(tmp_path / "out", ":calls_with_other_values", strategy="layers", workers=2, launcher="spawn")
    assert not steps_of(read_rank(rank_path(tmp_path / "out", 1)))
