"""`lockstep init`: from scripts as people write them to a recipe that computes what they compute."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from lockstep.cli import app
from lockstep.cli_help import EXAMPLES, PAGES
from lockstep.data.source import first_samples, open_source
from lockstep.recipe import Recipe
from lockstep.recipe_file import load
from tests.commands import CommandLine

ROOT = Path(__file__).parents[3]
SCRIPTS = ROOT / "tests" / "user_scripts"
EXPECTED: dict[str, dict[str, Any]] = {
    "prepared": {"global_batch": 20, "epochs": 4, "model": "Bag", "data": "Words", "optimizer": "Adam"},
    "by_functions": {
        "global_batch": 64,
        "epochs": 14,
        "model": "Net",
        "data": "TensorDataset",
        "optimizer": "Adadelta",
    },
    "flat": {"global_batch": 32, "epochs": 3, "clip": 1.0, "model": "Net", "data": "TensorDataset", "optimizer": "SGD"},
    "spawned": {"global_batch": 16, "epochs": 5, "model": "Model", "data": "Toy", "optimizer": "AdamW"},
    "trainer_class": {"global_batch": 32, "epochs": 5, "model": "Linear", "data": "Points", "optimizer": "SGD"},
    "step_function": {
        "global_batch": 30,
        "epochs": 2,
        "model": "Sequential",
        "data": "TensorDataset",
        "optimizer": "AdamW",
    },
    "nested": {
        "global_batch": 12,
        "epochs": 6,
        "model": "AutoEncoder",
        "data": "Subset",
        "optimizer": "RMSprop",
    },
    "model_at_top": {
        "global_batch": 16,
        "epochs": 3,
        "clip": 1.0,
        "model": "Classifier",
        "data": "Reviews",
        "optimizer": "Adam",
    },
    "evaluated": {
        "global_batch": 20,
        "epochs": 3,
        "model": "Sequential",
        "data": "Subset",
        "optimizer": "SGD",
    },
    "accumulates": {
        "global_batch": 32,
        "epochs": 3,
        "model": "Sequential",
        "data": "TensorDataset",
        "optimizer": "SGD",
    },
    "plateau": {"global_batch": 8, "epochs": 4, "model": "Linear", "data": "TensorDataset", "optimizer": "Adam"},
    "config_in_trainer": {
        "global_batch": 24,
        "epochs": 7,
        "drop_last": True,
        "model": "Residual",
        "data": "TensorDataset",
        "optimizer": "SGD",
    },
}


def made_from(name: str, cli: CommandLine, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    """Have a recipe written from a script, and load it."""
    monkeypatch.syspath_prepend(folder)
    script = folder / f"{name}.py"
    shutil.copy(SCRIPTS / script.name, script)
    done = cli("init", script.name)
    assert done.code == 0, done.text
    assert "It runs on two samples" in done.out
    return load(str(folder / f"{name}_recipe.py"))


@pytest.mark.parametrize("name", EXPECTED)
def test_scripts(name: str, cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = dict(EXPECTED[name])
    recipe = made_from(name, cli, tmp_path, monkeypatch)
    model = recipe.model()
    assert type(model).__name__ == expected.pop("model")
    assert type(recipe.dataset()).__name__ == expected.pop("data")
    assert type(recipe.optimizer(model.parameters())).__name__ == expected.pop("optimizer")
    assert {field: getattr(recipe, field) for field in expected} == expected
    assert recipe.lanes is not None
    assert recipe.global_batch % recipe.lanes == 0, "it could not be trained"
    first, again = (first_samples(open_source(recipe.dataset(), recipe.collate), 3) for _ in range(2))
    made = recipe.loss(model, first)
    assert isinstance(made, torch.Tensor)
    torch.autograd.backward(made)
    assert all(parameter.grad is not None for parameter in model.parameters())
    ours, anew = (torch.as_tensor(recipe.loss(model.eval(), batch)) for batch in (first, again))
    assert torch.equal(ours, anew), "each worker would have other data"


def test_the_loss_is_the_scripts(cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Label smoothing, the model's own settings and the optimizer's are the script's, not the defaults."""
    recipe = made_from("step_function", cli, tmp_path, monkeypatch)
    script = runpy.run_path(str(SCRIPTS / "step_function.py"))
    torch.manual_seed(0)
    model = recipe.model()
    torch.manual_seed(0)
    original = script["make_model"](32)
    batch = first_samples(open_source(script["make_dataset"]()), 8)
    ours = recipe.loss(model, batch)
    theirs = torch.nn.CrossEntropyLoss(label_smoothing=0.1)(original(batch[0]), batch[1])
    assert torch.equal(torch.as_tensor(ours), theirs)
    (group,) = recipe.optimizer(model.parameters()).param_groups
    assert (group["lr"], group["weight_decay"]) == (1e-3, 0.1)


def test_accumulated_batches_are_one_step(cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss of a recipe is that of its batch, not a part of it."""
    recipe = made_from("accumulates", cli, tmp_path, monkeypatch)
    batch, model = (torch.randn(8, 6), torch.randn(8, 1)), recipe.model()
    assert torch.equal(
        torch.as_tensor(recipe.loss(model, batch)), torch.nn.functional.mse_loss(model(batch[0]), batch[1])
    )


def test_a_script_that_draws_its_own_batches(cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are no epochs, clipping is around the inner loop, and what is left to the user is said."""
    monkeypatch.syspath_prepend(tmp_path)
    shutil.copy(SCRIPTS / "draws_batches.py", tmp_path / "draws_batches.py")
    done = cli("init", "draws_batches.py")
    assert done.code == 0, done.text
    for line in (
        "data       not found: line 42 draws batches, get_batch('train'); here it is a dataset of single samples",
        "schedule   left out: line 39 sets the learning rate by hand",
        "global_batch  not found, so 64 stands there: set it; line 41: Config().grad_accum batches make a step",
        "It is not complete: write make_data() in draws_batches_recipe.py, then type:",
    ):
        assert line in done.out
    recipe = load(str(tmp_path / "draws_batches_recipe.py"))
    assert (recipe.steps, recipe.epochs, recipe.clip) == (60, 1, 1.0)
    batch, model = (torch.randn(8, 24), torch.randn(8)), recipe.model().eval()
    assert torch.equal(
        torch.as_tensor(recipe.loss(model, batch)), torch.nn.functional.mse_loss(model(batch[0]), batch[1])
    )


def test_the_model_is_made_anew(cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that makes its model at its top has one; a recipe makes one after each seed."""
    recipe = made_from("model_at_top", cli, tmp_path, monkeypatch)
    made = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        made.append(next(recipe.model().parameters()))
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])


def test_empty(cli: CommandLine, tmp_path: Path) -> None:
    assert cli("init").code == 0
    recipe = load(str(tmp_path / "recipe.py"))
    made = recipe.loss(recipe.model(), first_samples(open_source(recipe.dataset()), 4))
    assert isinstance(made, torch.Tensor)
    before = (tmp_path / "recipe.py").read_text()
    refused = cli("init")
    assert refused.code == 2
    assert "not overwritten" in refused.err
    assert (tmp_path / "recipe.py").read_text() == before


OWN_SAMPLES = """
import torch
from torch import nn

def draw():
    return torch.randn(32, 4), torch.randn(32, 1)

def main():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(100):
        x, y = draw()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
"""


def test_a_loss_that_draws_its_own_samples_is_left_to_the_user(cli: CommandLine, tmp_path: Path) -> None:
    """With data filled in it would train on, and on other samples."""
    (tmp_path / "draws.py").write_text(OWN_SAMPLES)
    done = cli("init", "draws.py")
    assert "loss       not found: line 14 has its own samples; here they come from make_data(), as batch" in done.out
    assert "draw()" not in (tmp_path / "draws_recipe.py").read_text()


def test_a_loop_that_counts_and_updates_by_hand(cli: CommandLine, tmp_path: Path) -> None:
    """Nothing steps in it, so nothing says how many steps there are."""
    (tmp_path / "by_hand.py").write_text(OWN_SAMPLES.replace("optimizer.step()", "model.weight.data -= 0.1"))
    done = cli("init", "by_hand.py")
    assert done.code == 0, done.text
    assert "steps=" not in (tmp_path / "by_hand_recipe.py").read_text()


def test_parameter_groups_are_left_to_the_user_and_nothing_else(cli: CommandLine, tmp_path: Path) -> None:
    shutil.copy(SCRIPTS / "grouped.py", tmp_path)
    done = cli("init", "grouped.py")
    assert done.code == 0, done.text
    assert "optimizer  not found: its parameter groups, which are made of `parameters` here" in done.out
    recipe = load(str(tmp_path / "grouped_recipe.py"))
    assert type(recipe.model()).__name__ == "Net"
    assert recipe.global_batch == 16
    assert recipe.epochs == 2


def test_what_is_not_found_is_said_and_left_to_the_user(cli: CommandLine, tmp_path: Path) -> None:
    text = (SCRIPTS / "step_function.py").read_text().replace("for batch in loader", "for batch in range(9)")
    (tmp_path / "counting.py").write_text(text)
    done = cli("init", "counting.py")
    assert done.code == 0
    assert "data       not found: line 25 counts instead of reading a dataset. Write make_data()" in done.out
    recipe = load(str(tmp_path / "counting_recipe.py"))
    assert recipe.model() is not None
    with pytest.raises(NotImplementedError, match="Write it here"):
        recipe.data()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = (", "is not a Python script"),
        ("def recipe():\n    return None\n", "is a recipe already"),
        ("print('hello')\n", "no call of .backward() in its functions"),
        (None, "no such file"),
    ],
)
def test_refused(text: str | None, words: str, cli: CommandLine, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "train.py").write_text(text)
    done = cli("init", "train.py")
    assert done.code == 2, done.text
    assert words in done.err
    assert "(help: lockstep docs recipes)" in done.err
    assert not (tmp_path / "train_recipe.py").exists()


def test_a_script_that_is_not_there_is_named_before_the_recipe_that_is(cli: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "train_recipe.py").touch()
    done = cli("init", "train")
    assert done.code == 2, done.text
    assert "train: no such file" in done.err


def test_where_to_begin(cli: CommandLine) -> None:
    done = cli()
    assert done.code == 0
    assert "lockstep init" in done.out


def test_completion(cli: CommandLine) -> None:
    """As the shell asks for it."""
    asked = {"_LOCKSTEP_COMPLETE": "complete_bash", "COMP_WORDS": "lockstep com", "COMP_CWORD": "1"}
    assert cli.apart(env=asked).out.split() == ["compare"]


def test_examples_and_pages_are_there() -> None:
    import typer

    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert set(EXAMPLES) <= set(commands)
    for name, lines in EXAMPLES.items():
        options = {flag for one in commands[name].params for flag in one.opts} | {"--its-own-flags"}
        typed = {word for line in lines for word in line.split() if word.startswith("-") and word not in ("-N2", "-n2")}
        assert typed <= options, name
    assert [page for page in PAGES.values() if not (ROOT / "docs" / f"{page}.md").is_file()] == []
