"""Settings go whole from the command line to the strategy: a field is an option, and arrives as it was typed."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import pytest
import torch
import typer
from torch import nn
from torch.optim import SGD

from lockstep import Trainer, World
from lockstep.cli import app
from lockstep.cli_options import setting_parameters
from lockstep.errors import BadInput
from lockstep.launch import start
from lockstep.settings import Option, Settings
from lockstep.train.spec import RunSpec
from tests.commands import CommandLine

TYPED: dict[str, tuple[list[str], Any]] = {
    "strategy": (["--strategy", "torch-ddp"], "torch-ddp"),
    "workers": (["--workers", "3"], 3),
    "lanes": (["--lanes", "6"], 6),
    "seed": (["--seed", "7"], 7),
    "sync_batchnorm": (["--sync-batchnorm"], True),
    "exact": (["--inexact"], False),
    "measure": (["--no-measure"], False),
    "launcher": (["--launcher", "torchrun"], "torchrun"),
    "threads": (["--threads", "2"], 2),
    "device": (["--device", "cpu"], "cpu"),
    "backend": (["--backend", "gloo"], "gloo"),
    "steps": (["--steps", "9"], 9),
    "epochs": (["--epochs", "2"], 2),
    "global_batch": (["--global-batch", "48"], 48),
    "drop_last": (["--drop-last"], True),
    "stages": (["--stages", "2"], 2),
    "cut": (["--cut", "1,3"], "1,3"),
    "stage_memory": (["--stage-memory", "2GiB"], "2GiB"),
    "pipeline_schedule": (["--pipeline-schedule", "fill-drain"], "fill-drain"),
    "data": (["--data", "images"], "images"),
    "checkpoint_every": (["--checkpoint-every", "5"], 5),
    "eval_every": (["--eval-every", "4"], 4),
    "keep_best": (["--keep-best", "accuracy"], "accuracy"),
    "patience": (["--patience", "3"], 3),
    "stall_limit": (["--stall-limit", "600"], 600.0),
    "tensorboard": (["--tensorboard"], True),
}
"""Each option as it is typed, and what the field then is; a path is made absolute."""


@dataclass(frozen=True, kw_only=True)
class Extended(RunSpec):
    """A spec with one more option."""

    colour: Annotated[str, Option(help="Of the bicycle shed.", only="run")] = "red"


def asked_of_a_run(arguments: list[str], monkeypatch: pytest.MonkeyPatch, cli: CommandLine) -> RunSpec:
    """Return the spec that a command hands to what starts the workers."""
    specs: list[RunSpec] = []

    def stop(spec: RunSpec, *_: object) -> None:
        specs.append(spec)
        raise BadInput("enough")

    monkeypatch.setattr(start, "start_run", stop)
    done = cli("run", *arguments)
    assert done.err == "lockstep: enough\n", done.text
    return specs[0]


def test_every_option_is_tried() -> None:
    hints = get_type_hints(RunSpec, include_extras=True)
    metadata = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    assert {name for name, own in metadata.items() if any(isinstance(one, Option) for one in own)} == set(TYPED)


@pytest.mark.parametrize("name", TYPED)
def test_what_is_typed_is_in_the_spec(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    arguments, expected = TYPED[name]
    plain = asked_of_a_run([], monkeypatch, cli)
    spec = asked_of_a_run(arguments, monkeypatch, cli)
    assert getattr(spec, name) == (str(tmp_path / "images") if name == "data" else expected)
    assert getattr(plain, name) != getattr(spec, name)
    follows = {"workers": {"strategy", "launcher"}}.get(name, set())
    changed = {field.name for field in fields(RunSpec) if getattr(plain, field.name) != getattr(spec, field.name)}
    assert changed == {name, *follows}


def test_a_recipe_file_is_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    assert asked_of_a_run(["train.py:mine"], monkeypatch, cli).recipe == f"{tmp_path}/train.py:mine"
    assert asked_of_a_run(["mlp"], monkeypatch, cli).recipe == "mlp"
    assert asked_of_a_run([], monkeypatch, cli).recipe == "cifar100"


def test_a_new_field_is_an_option_and_reaches_the_strategy() -> None:
    new = {one.name for one in setting_parameters(Extended, "run")} - {
        one.name for one in setting_parameters(RunSpec, "run")
    }
    assert new == {"colour"}
    assert "colour" not in {one.name for one in setting_parameters(Extended, "compare")}
    spec = Extended(recipe="mlp", colour="blue", lanes=3)
    training = trainer(settings=spec).strategy.training
    assert isinstance(training.settings, Extended)
    assert training.settings.colour == "blue"
    assert training.lanes == 3


def trainer(**options: Any) -> Trainer:
    return Trainer(
        World.alone(threads=1), lambda: nn.Linear(2, 2), SGD, lambda model, batch: model(batch).sum(), **options
    )


def test_options_of_a_trainer_are_settings() -> None:
    plain, other = trainer(), trainer(settings=Settings(lanes=4, seed=1), lanes=8, measure=False)
    assert plain.settings == Settings(lanes=1, seed=0)
    assert other.settings == Settings(lanes=8, seed=1, measure=False)
    assert not torch.equal(plain.model.weight, other.model.weight)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="there is no setting 'lane'; did you mean 'lanes'"):
        trainer(lane=8)


@pytest.mark.parametrize(
    ("command", "first"),
    [("run", ["--strategy", "--workers", "--lanes"]), ("compare", ["--strategies", "--workers", "--lanes"])],
)
def test_help_begins_with_what_nearly_everybody_types(command: str, first: list[str]) -> None:
    options = typer.main.get_command(app).commands[command].params[1:]  # type: ignore[attr-defined]
    assert [option.opts[0] for option in options][:3] == first
