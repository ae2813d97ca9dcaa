"""From a run to plain PyTorch: the two lines of the docs, on weights that several workers trained."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from lockstep import World
from lockstep.comm.group import Group
from lockstep.errors import RunFailed
from lockstep.launch.start import start_run
from lockstep.mesh import Mesh
from lockstep.recipe_file import load
from lockstep.report.collect import read_finished
from lockstep.state.holdings import model_holdings
from lockstep.train.checkpoint_folder import path_of
from lockstep.train.evaluate import evaluate
from lockstep.train.fingerprints import fingerprints
from lockstep.train.spec import RunSpec
from tests.commands import RECIPES, CommandLine

DOCS = Path(__file__).parents[2] / "docs"


def begin(out: Path, recipe: str, **fields: Any) -> Path:
    order = {"threads": 1, "lanes": 4, "progress": False, "launcher": "spawn", **fields}
    return start_run(RunSpec(recipe=str(RECIPES / recipe), **order), out)


def by_the_docs(model: nn.Module, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the lines as they stand in the docs, where the file of the model is train.py."""
    page = (DOCS / "checkpoints.md").read_text()
    (lines,) = re.findall(r"```python\n(from safetensors\.torch import load_file\n.*?\n)```", page, re.DOTALL)
    monkeypatch.chdir(folder)
    monkeypatch.setitem(sys.modules, "train", SimpleNamespace(Net=lambda: model))
    exec(lines, {})


@pytest.mark.parametrize(("recipe", "strategy"), [("tiny.py", "ddp"), ("tied.py", "ddp"), ("tied.py", "torch-ddp")])
def test_a_plain_model_is_the_trained_one(
    recipe: str, strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    torch.set_num_threads(1)
    out = begin(tmp_path / "out", recipe, strategy=strategy, workers=2)
    done = cli("export", "out", "model.safetensors")
    assert done.code == 0, done.text
    assert re.search(r"model\.safetensors: \d+ tensors, \d+ bytes, after \d+ steps \(its final weights\)", done.out)
    made = load(str(RECIPES / recipe), None)
    assert made.evaluate is not None
    torch.manual_seed(99)
    model = made.model()
    by_the_docs(model, tmp_path, monkeypatch)
    metrics = evaluate(Mesh.over(World.alone(threads=1)), model, made.evaluate, made.eval_dataset(), batch=3)
    run = read_finished(out)
    assert metrics == run.result.metrics
    last = run.fingerprints[-1]
    assert fingerprints(Group.alone(), last.step, model_holdings(model)) == last, "the same bits"


def test_a_run_that_did_not_finish(tmp_path: Path, cli: CommandLine) -> None:
    """Its last good checkpoint is taken, and its weights are those of a run of that many steps."""
    out = tmp_path / "out"
    with pytest.raises(RunFailed):
        begin(out, "resumed.py:killed", strategy="ddp", workers=4, checkpoint_every=3)
    done = cli("export", "out", "model.safetensors", "--json")
    assert done.code == 0, done.text
    exported = json.loads(done.out)
    assert (exported["step"], exported["finished"], exported["warnings"]) == (9, False, [])
    assert exported["source"].endswith("checkpoint-000009.safetensors")
    assert exported["bytes"] == (tmp_path / "model.safetensors").stat().st_size
    nine = load_file(begin(tmp_path / "nine", "resumed.py", steps=9) / "final.safetensors")
    loaded = load_file(tmp_path / "model.safetensors")
    assert loaded.keys() == nine.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in nine.items())
    path_of(out, 9).write_bytes(b"damaged")
    done = cli("export", "out", "model.safetensors", "--force")
    assert done.code == 0, done.text
    assert "after 6 steps (checkpoint-000006.safetensors: the run did not finish)" in done.out
    assert "lockstep: warning: " in done.err
    assert "checkpoint-000009.safetensors has 7 bytes" in done.err
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        about = json.loads(file.metadata()["lockstep"])
    assert about == {"kind": "weights", "schema": 2, "recipe": "resumed", "step": 6, "tied": {}}
