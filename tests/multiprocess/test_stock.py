"""PyTorch's own strategies from the command line: rows of a comparison, and refusals before anything starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors import safe_open

from tests.commands import TINY, CommandLine

RECIPES = Path(__file__).parents[1] / "recipes"
STOCK = "single,torch-dp,torch-fsdp,torch-pipeline"
STAGED_TIED = """
import sys
from dataclasses import replace
sys.path.insert(0, {folder!r})
import tied
import torch

def recipe():
    listed = lambda model: [model.embed, lambda values: model.past @ values, model.mix,
                            lambda values: values.transpose(1, 2), model.norm,
                            lambda values: torch.tanh(values.transpose(1, 2)), model.head]
    return replace(tied.recipe(), stages=listed)
"""
REFUSED = {
    "lanes of other shapes": (["bytes", "--strategy", "torch-pipeline"], "needs lanes of one shape, and lane"),
    "a short last batch": (
        ["mlp", "--strategy", "torch-pipeline", "--global-batch", "60", "--lanes", "4"],
        "the last batch of an epoch has 16 samples, not 60: use --drop-last",
    ),
    "a tied weight": (["staged_tied.py", "--strategy", "torch-pipeline"], "two stages use embed.weight"),
    "replicas": (
        ["mlp", "--strategy", "torch-pipeline", "--workers", "4", "--stages", "2"],
        "gives 2 replicas: use --stages 4",
    ),
    "unequal lanes": (["mlp", "--strategy", "torch-fsdp", "--workers", "3"], "lanes=4 cannot be divided evenly over 3"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_a_worker_starts(name: str, tmp_path: Path, cli: CommandLine) -> None:
    (tmp_path / "staged_tied.py").write_text(STAGED_TIED.format(folder=str(RECIPES)))
    arguments, said = REFUSED[name]
    workers = [] if "--workers" in arguments else ["--workers", "2"]
    done = cli("run", *arguments, *workers, "--out", "run")
    assert done.code == 2, done.text
    assert said in " ".join(done.err.split())
    assert not (tmp_path / "run").exists()


def test_rows_of_a_comparison(tmp_path: Path, cli: CommandLine) -> None:
    asked = ["--strategies", STOCK, "--repeats", "1", "--steps", "4", "--lanes", "4", "--json", "--out", "out"]
    done = cli("compare", TINY, *asked)
    assert done.code == 0, done.text
    rows = {row["name"]: row for row in json.loads(done.out)["rows"]}
    assert "CUDA devices" in rows["torch-dp"]["why_not"]
    with safe_open(tmp_path / "out" / "single-1" / "final.safetensors", "numpy") as plain:
        names = sorted(plain.keys())
    for name in ("torch-fsdp", "torch-pipeline"):
        row = rows[name]
        assert not row["why_not"]
        assert row["loss"] == pytest.approx(rows["single"]["loss"], rel=0.2), "dropout is each stage's own"
        assert row["metrics"].keys() == {"accuracy"}
        assert not row["parity"].startswith("same bits")
        with safe_open(tmp_path / "out" / f"{name}-1" / "final.safetensors", "numpy") as file:
            assert sorted(file.keys()) == names


def test_every_rank_of_a_pipeline_records_the_loss(tmp_path: Path, cli: CommandLine) -> None:
    asked = ["run", TINY, "--strategy", "torch-pipeline", "--workers", "2", "--lanes", "4", "--steps", "3"]
    done = cli(*asked, "--out", "run")
    assert done.code == 0, done.text
    losses = []
    for rank in (0, 1):
        lines = [json.loads(line) for line in (tmp_path / "run" / f"rank-{rank}.jsonl").read_text().splitlines()]
        losses.append([line["loss"] for line in lines if "loss" in line and "step" in line])
    assert losses[0] == losses[1]
    assert len(losses[0]) == 3
    assert min(losses[0]) > 0.0
