"""`lockstep export`: where the weights come from, and every refusal on one line."""

from __future__ import annotations

import json
import os
import resource
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn, optim

from lockstep import Trainer, World
from lockstep.comm.group import Group
from lockstep.errors import BadInput
from lockstep.state.holdings import model_holdings
from lockstep.train.checkpoint_folder import path_of
from lockstep.train.export import export
from lockstep.train.final_weights import write_weights
from lockstep.train.records import CannotWrite, write_document
from tests.commands import CommandLine
from tests.unit.report.values import rank_result, result_of, setup
from tests.unit.tensor_files import with_content


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.last = nn.Linear(4, 4)
        self.last.weight = self.first.weight
        self.register_buffer("cache", torch.ones(3), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.last(self.norm(self.first(inputs)))
        return outputs


def run_folder(path: Path, model: nn.Module | None = None) -> Path:
    """Make a folder with what makes it a run, and a model's final weights."""
    path.mkdir()
    write_document(path / "run.json", setup())
    if model is not None:
        write_weights(
            path / "final.safetensors",
            Group.alone(),
            model_holdings(model),
            model,
            {"step": 7, "recipe": "tied", "digest": "ab"},
        )
    return path


def checkpoint(folder: Path, step: int) -> nn.Module:
    """Write a checkpoint as after so many steps; return the model with its weights."""
    torch.manual_seed(step)
    trainer = Trainer(
        World.alone(threads=1), Tied(), lambda ps: optim.AdamW(ps, lr=0.1), lambda model, batch: model(batch).sum()
    )
    trainer.steps = step
    trainer.save(path_of(folder, step))
    return trainer.model


def check(path: Path, model: nn.Module) -> None:
    """Hold that a file has a model's weights, all of them and nothing else."""
    loaded = load_file(path)
    assert set(loaded) == set(model.state_dict())
    assert all(torch.equal(loaded[name], tensor) for name, tensor in model.state_dict().items())
    assert not list(path.parent.glob(".*"))


def test_final_weights_come_first(tmp_path: Path) -> None:
    model = Tied()
    folder = run_folder(tmp_path / "run", model)
    checkpoint(folder, 5)
    exported = export(folder, tmp_path / "model.safetensors")
    assert (exported.step, exported.finished, exported.tensors) == (7, True, 9)
    check(tmp_path / "model.safetensors", model)
    assert (tmp_path / "model.safetensors").read_bytes() == (folder / "final.safetensors").read_bytes()


def test_else_the_last_good_checkpoint(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    older, newer = checkpoint(folder, 5), checkpoint(folder, 6)
    exported = export(folder, tmp_path / "model.safetensors")
    assert (exported.step, exported.finished, exported.warnings) == (6, False, ())
    check(tmp_path / "model.safetensors", newer)
    path_of(folder, 6).write_bytes(path_of(folder, 6).read_bytes()[:-1])
    exported = export(folder, tmp_path / "model.safetensors", force=True)
    assert exported.step == 5
    assert exported.warnings[0].endswith("Took checkpoint-000005.safetensors")
    check(tmp_path / "model.safetensors", older)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none", "model"], "none is no run folder: there is no run.json in it"),
        (["bare", "model"], "bare has no weights: the run did not finish, and wrote no checkpoint"),
        (["late", "model"], "late has no weights: a comparison keeps those of a way's first repeat"),
        (["old", "model"], "old has no weights: an older version of Lockstep wrote final.ls"),
        (["all", "model"], "all is a comparison: give one of its runs, ddp-1, single-1"),
        (["good", "taken"], "taken exists already: give --force to replace it"),
        (["good", "bare"], "bare is a folder: give the name of a file, such as bare/model.safetensors"),
        (["good", "bare", "--force"], "bare is a folder"),
        (["good", "model.pt"], "which torch.load does not read: name it model.safetensors, and load it by"),
        (["good", "absent/model"], "the folder absent does not exist"),
        (["cut", "model"], "cut off or damaged. To take the last checkpoint instead, remove it"),
        (["spoilt", "model"], "spoilt has no checkpoint that is whole: "),
        (["odd", "model"], "has no tensor for first.weight, which its header names"),
    ],
)
def test_refused(arguments: list[str], words: str, tmp_path: Path, cli: CommandLine) -> None:
    run_folder(tmp_path / "bare")
    run_folder(tmp_path / "good", Tied())
    (tmp_path / "taken").write_bytes(b"precious")
    write_document(run_folder(tmp_path / "late") / "result.json", result_of([rank_result(0, {"data": 1.0})], 1))
    (run_folder(tmp_path / "old") / "final.ls").write_bytes(b"")
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "plan.json").write_text("{}")
    for name in ("single-1", "ddp-1"):
        run_folder(tmp_path / "all" / name)
    cut = run_folder(tmp_path / "cut", Tied()) / "final.safetensors"
    cut.write_bytes(cut.read_bytes()[:-1])
    checkpoint(run_folder(tmp_path / "spoilt"), 1)
    path_of(tmp_path / "spoilt", 1).write_bytes(b"")
    checkpoint(run_folder(tmp_path / "odd"), 1)
    forge = with_content(lambda content: {**content, "weights": {"first.weight": "absent"}})
    path_of(tmp_path / "odd", 1).write_bytes(forge(path_of(tmp_path / "odd", 1).read_bytes()))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    done = cli("export", *arguments)
    assert done.code == 2, done.text
    assert words in done.err
    assert done.err.startswith("lockstep: ")
    assert done.err.count("\n") == 1
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_force_replaces(tmp_path: Path, cli: CommandLine) -> None:
    model = Tied()
    run_folder(tmp_path / "run", model)
    (tmp_path / "taken").write_bytes(b"old")
    done = cli("export", "run", "taken", "--force", "--json")
    assert done.code == 0, done.text
    check(tmp_path / "taken", model)
    assert json.loads(done.out) == {
        "out": "taken",
        "source": "run/final.safetensors",
        "step": 7,
        "finished": True,
        "tensors": 9,
        "bytes": (tmp_path / "taken").stat().st_size,
        "warnings": [],
    }


def test_a_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    """A limit on the size of a file stands for the disk."""
    folder = run_folder(tmp_path / "run", nn.Linear(100, 100))
    (tmp_path / "taken").write_bytes(b"old")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000))
            with pytest.raises(CannotWrite, match=r"File too large\. Nothing was changed: make room"):
                export(folder, tmp_path / "taken", force=True)
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (tmp_path / "taken").read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "taken"]


def test_a_header_that_was_forged(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", Tied())
    good = (folder / "final.safetensors").read_bytes()
    changes: list[dict[str, Any]] = [{"step": "x"}, {"tied": []}, {"tied": {"norm.weight": "absent"}}]
    for change in changes:
        forge = with_content(lambda content: {**content, **change})  # noqa: B023
        (folder / "final.safetensors").write_bytes(forge(good))
        with pytest.raises(BadInput, match=r"final\.safetensors has "):
            export(folder, tmp_path / "model")
