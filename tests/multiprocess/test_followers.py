"""Following a run while it goes on: callbacks and TensorBoard see every step, and change no bit."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from lockstep.errors import RunFailed
from lockstep.launch.start import start_run
from lockstep.report.collect import FinishedRun, read_finished
from lockstep.train.resume import read_standing, resumed_spec
from lockstep.train.spec import RunSpec
from tests.commands import RECIPES, CommandLine

RECIPE = str(RECIPES / "watched.py")
TWO: dict[str, Any] = {"strategy": "ddp", "workers": 2, "launcher": "spawn"}


def train(out: Path, function: str, **changes: Any) -> FinishedRun:
    fields = {"recipe": f"{RECIPE}{function}", "threads": 1, "lanes": 4, "progress": False, "monitored": True}
    return read_finished(start_run(RunSpec(**{**fields, **changes}), out))


def told(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"{kind}.jsonl").read_text().splitlines()]


def shown(folder: Path) -> dict[str, list[tuple[int, float]]]:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder / "tensorboard"))
    read.Reload()
    return {tag: [(one.step, one.value) for one in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


@pytest.fixture(scope="module")
def uncalled(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return train(tmp_path_factory.mktemp("uncalled") / "out", ":uncalled", monitored=False)


def test_callbacks_are_told_of_every_step_and_change_no_bit(tmp_path: Path, uncalled: FinishedRun) -> None:
    run = train(tmp_path / "out", ":called", **TWO)
    assert run.result.digest == uncalled.result.digest
    assert run.result.callback_seconds > 0
    steps = told(run.folder, "StepDone")
    assert [one["step"] for one in steps] == list(range(16)), "by rank 0 alone"
    assert [one["loss"] for one in steps] == pytest.approx(run.losses)
    assert [one["step"] for one in steps if one["last"]] == [15]
    assert [one["step"] for one in steps if one["metrics"]] == [7, 15]
    assert [one["learning_rates"] for one in steps] == [pytest.approx([0.1])] * 4 + [pytest.approx([0.01])] * 12
    assert (steps[0]["recipe"], steps[0]["settings"], steps[0]["folder"]) == ("watched", "ddp", "out")
    epochs = told(run.folder, "EpochDone")
    assert [(one["epoch"], one["steps"], one["last"]) for one in epochs] == [(0, 8, False), (1, 16, True)]
    assert epochs[0]["loss"] == pytest.approx(sum(run.losses[:8]) / 8)
    assert epochs[1]["metrics"] == run.result.metrics


def test_a_comparison_calls_nobody(tmp_path: Path) -> None:
    run = train(tmp_path / "out", ":called", monitored=False)
    assert not list(run.folder.glob("*Done.jsonl"))


def test_a_callback_that_fails_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"(?s)the tracker is not there.*in Recipe\(on_step=\.\.\.\), after 3 steps"):
        train(tmp_path / "out", ":raising")


def test_tensorboard_shows_every_step_and_changes_no_bit(tmp_path: Path, uncalled: FinishedRun) -> None:
    run = train(tmp_path / "out", ":uncalled", tensorboard=True, eval_every=5, **TWO)
    assert run.result.digest == uncalled.result.digest
    scalars = shown(run.folder)
    assert [step for step, _ in scalars["loss"]] == list(range(16))
    assert [loss for _, loss in scalars["loss"]] == pytest.approx(run.losses)
    assert [step for step, _ in scalars["evaluation/accuracy"]] == [4, 9, 14, 15]
    assert [rate for _, rate in scalars["learning_rate"][3:5]] == pytest.approx([0.1, 0.01])


@pytest.mark.timeout(120)
def test_tensorboard_can_be_looked_at_while_the_run_goes_on(tmp_path: Path) -> None:
    """The recipe's last callback returns only when the event file shows a step."""
    pytest.importorskip("tensorboard")
    assert train(tmp_path / "out", ":looked_at", tensorboard=True, steps=3).result.steps == 3


def test_a_resumed_run_shows_each_step_once(tmp_path: Path) -> None:
    out = tmp_path / "out"
    train(out, ":uncalled", tensorboard=True, steps=6, checkpoint_every=4)
    (out / "checkpoint-000006.safetensors").unlink()  # as if it had been killed before
    standing = read_standing(out)
    run = read_finished(start_run(resumed_spec(standing, {"steps": 9}), out))
    assert [one.step for one in run.result.resumed] == [4]
    assert [step for step, _ in shown(out)["loss"]] == list(range(9))


def test_the_package_is_asked_for_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    done = cli("run", RECIPE, "--tensorboard", "--out", "out")
    assert done.code == 2, done.text
    assert "--tensorboard needs the package tensorboard: pip install 'lockstep-train[tensorboard]'" in done.err
    assert not (tmp_path / "out").exists()


def test_a_peer_cannot_be_followed(cli: CommandLine) -> None:
    pytest.importorskip("accelerate")
    arguments = ["run", f"{RECIPE}:called", "--strategy", "accelerate", "--out", "out"]
    done = cli(*arguments)
    assert done.code == 2, done.text
    assert "Recipe(on_step=...): strategy accelerate runs its own loop" in done.err
