"""`lockstep init`: the schedule and the evaluation of a script, and what is said where they are not sure."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.optim import SGD, Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from lockstep.data.source import first_samples, open_source
from lockstep.first_recipe.evaluation_loops import find_evaluation
from lockstep.first_recipe.recipe_parts import RecipeParts
from lockstep.first_recipe.schedules import find_schedule
from lockstep.first_recipe.training_script import TrainingScript
from lockstep.recipe_file import load
from tests.commands import CommandLine
from tests.unit.first_recipe.test_first_recipe import SCRIPTS, made_from


def warmed_up(optimizer: Optimizer) -> LRScheduler:
    warm = lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=4)
    rest = lr_scheduler.CosineAnnealingLR(optimizer, T_max=3 * 5 - 4)
    return lr_scheduler.SequentialLR(optimizer, [warm, rest], milestones=[4])


SCHEDULES: dict[str, tuple[float, Callable[[Optimizer], LRScheduler], int]] = {
    "by_functions": (1.0, lambda one: lr_scheduler.StepLR(one, step_size=1, gamma=0.7), 10),
    "config_in_trainer": (0.1, lambda one: lr_scheduler.CosineAnnealingLR(one, T_max=7), 4),
    "model_at_top": (2e-3, lambda one: lr_scheduler.OneCycleLR(one, 2e-3, 12, cycle_momentum=False), 1),
    "evaluated": (0.5, warmed_up, 1),
}
"""The first rate, the script's schedule, and after how many batches the script advances it."""


def rates(optimizer: Optimizer, schedule: LRScheduler, batches: int) -> list[float]:
    """Return the rates of the first 12 steps, if the schedule advances once in so many."""
    found = []
    for step in range(1, 13):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if step % batches == 0:
            schedule.step()
    return found


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_rates_are_the_scripts(
    name: str, cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = made_from(name, cli, tmp_path, monkeypatch)
    rate, schedule, batches = SCHEDULES[name]
    optimizer = recipe.optimizer(recipe.model().parameters())
    assert recipe.schedule is not None
    plain = SGD([torch.zeros(1)], lr=rate)
    expected = rates(plain, schedule(plain), batches)
    assert len(set(expected)) > 1
    assert rates(optimizer, recipe.schedule(optimizer), 1) == expected


def test_the_evaluation_is_the_scripts(cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the first of two sets that it evaluates on, with no sample of the training data in it."""
    recipe = made_from("evaluated", cli, tmp_path, monkeypatch)
    script = runpy.run_path(str(SCRIPTS / "evaluated.py"))
    training, validation = recipe.dataset(), recipe.eval_dataset()
    assert sorted([*training.indices, *validation.indices]) == list(range(100)), "one split, not two"
    model = recipe.model()
    batch = first_samples(open_source(validation), 10)
    assert recipe.evaluate is not None
    metrics = recipe.evaluate(model.eval(), batch)
    assert metrics["accuracy"] == pytest.approx(script["accuracy"](model, [batch], "cpu"))
    assert metrics["loss"] == torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
    text = (tmp_path / "evaluated_recipe.py").read_text()
    assert "This is what line 51 evaluates on; line 52 has another evaluation." in " ".join(text.split())


def test_only_the_loss_is_evaluated_where_nothing_else_is_plain(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = made_from("plateau", cli, tmp_path, monkeypatch)
    assert recipe.schedule is None
    training, test = (first_samples(open_source(data), 16) for data in (recipe.dataset(), recipe.eval_dataset()))
    assert not torch.isin(test[0], training[0]).any(), "the seed would give the training data again"
    model = recipe.model()
    assert recipe.evaluate is not None
    assert recipe.evaluate(model, test) == {"loss": torch.nn.functional.mse_loss(model(test[0]).squeeze(1), test[1])}
    text = (tmp_path / "plateau_recipe.py").read_text()
    assert "# schedule= is left out: ReduceLROnPlateau, line 10: line 23 gives its step() a value" in text
    assert "#     schedule=lambda optimizer: " in text
    assert "What the loop computes beside it is for you to add." in " ".join(text.split())


def read(name: str, *changes: tuple[str, str]) -> RecipeParts:
    """Return what is found in a script with some of its text changed."""
    text = (SCRIPTS / f"{name}.py").read_text()
    for old, new in changes:
        assert text.count(old) == 1
        text = text.replace(old, new)
    script = TrainingScript(text, name)
    parts, training = script.parts(), script.training()
    assert training is not None
    find_schedule(script, training, parts)
    find_evaluation(script, training, parts)
    return parts


STEP = "            schedule.step()\n"
OTHER = "    other = CosineAnnealingLR(opt, T_max=9)\n"
CRITERION = "    criterion = nn.CrossEntropyLoss()\n"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ([(STEP, "")], "LinearLR, line 39: nothing calls its step()"),
        (
            [(STEP, f"            if epoch:\n    {STEP}")],
            "SequentialLR, line 41: line 51 calls its step() under a condition",
        ),
        (
            [("        model.train()\n", "        model.train()\n        schedule.step()\n"), (STEP, "")],
            "line 45 calls its step() neither after each batch nor at the end of each epoch",
        ),
        ([(STEP, f"{STEP}        schedule.step()\n")], "its step() is called in several places"),
        (
            [(CRITERION, f"{OTHER}{CRITERION}"), (STEP, f"{STEP}        other.step()\n")],
            "there are several, made in lines 41 and 42",
        ),
        ([("SequentialLR(opt,", "SequentialLR(torch.optim.SGD(model.parameters()),")], "its optimizer is the one of"),
        (
            [("warm = LinearLR(opt,", "warm = LinearLR(torch.optim.SGD(model.parameters()),")],
            "its optimizer is the one of",
        ),
    ],
)
def test_a_schedule_in_doubt_is_left_out(changes: list[tuple[str, str]], reason: str) -> None:
    parts = read("evaluated", *changes)
    assert reason in parts.left_out["schedule"]
    assert "schedule" not in parts.optional


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("nested", [], "line 61: test() has no loop that a recipe could be made of"),
        (
            "evaluated",
            [("(val_set, batch_size=50)", "(val_set, batch_size=50, collate_fn=list)")],
            "line 21: its collate_fn is not that of the training data",
        ),
        ("evaluated", [("DataLoader(val_set, batch_size=50)", "open('x')")], "line 21: where its data comes from"),
    ],
)
def test_an_evaluation_in_doubt_is_left_out(name: str, changes: list[tuple[str, str]], reason: str) -> None:
    parts = read(name, *changes)
    assert reason in parts.left_out["evaluate"]
    assert not {"evaluate", "eval_data"} & set(parts.optional)


def test_nothing_is_said_of_what_a_script_does_not_have() -> None:
    parts = read("step_function")
    assert (parts.optional, parts.left_out) == ({}, {})


def test_what_fails_in_the_trial_is_left_out_with_its_reason(cli: CommandLine, tmp_path: Path) -> None:
    text = (SCRIPTS / "evaluated.py").read_text()
    text = text.replace("start_factor=0.1", "start_factor=7.0").replace("(guess == y)", "(guess == y.repeat(3))")
    (tmp_path / "wrong.py").write_text(text)
    done = cli("init", "wrong.py")
    assert done.code == 0, done.text
    assert "schedule   left out: SequentialLR, line 41: it does not run in a recipe: ValueError: Starting" in done.out
    assert "evaluate   left out: line 21: it does not run in a recipe: RuntimeError: The size" in done.out
    written = (tmp_path / "wrong_recipe.py").read_text()
    assert "# schedule= is left out: SequentialLR, line 41" in written
    assert "# evaluate= with eval_data= is left out: line 21" in written
    assert "def make_schedule" not in written
    assert "It runs on two samples" in done.out


def test_what_fails_at_the_top_of_the_recipe_is_left_out(cli: CommandLine, tmp_path: Path) -> None:
    """The recipe ran before, and must not be spoilt."""
    text = (SCRIPTS / "evaluated.py").read_text()
    text = text.replace("def accuracy(net, batches, where):", "def accuracy(net, batches, where, scale):")
    text = text.replace("net(x).argmax(1)", "(net(x) * scale).argmax(1)")
    (tmp_path / "wrong.py").write_text(text.replace("_batches, device)", "_batches, device, 1 / 0)"))
    done = cli("init", "wrong.py")
    assert done.code == 0, done.text
    assert "evaluate   left out: line 21: it does not run in a recipe: ZeroDivisionError" in done.out
    assert "schedule   SequentialLR, from line 41" in done.out
    assert load(str(tmp_path / "wrong_recipe.py")).schedule is not None


def test_what_was_not_tried_is_left_out(cli: CommandLine, tmp_path: Path) -> None:
    text = (SCRIPTS / "evaluated.py").read_text().replace("for x, y in train_batches", "for x in range(9)")
    (tmp_path / "counting.py").write_text(text)
    done = cli("init", "counting.py")
    assert "data       not found" in done.out
    assert "schedule   left out: SequentialLR, line 41: it was not tried, because the recipe lacks data" in done.out
    assert "evaluate   left out: line 21: it was not tried" in done.out
