"""Ranks with different data or weights are refused before the first step, by name of the rank and of what differs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands import RECIPES, CommandLine

OWN_LOOP = """
import os, torch, lockstep
from torch import nn
with lockstep.join() as world:
    torch.manual_seed(world.rank if {model} else 0)
    net = nn.Linear(4, 1)
    torch.manual_seed(world.rank if {data} else 0)
    rows = list(torch.randn(8, 4))
    sgd = lambda ps: torch.optim.SGD(ps, lr=0.1)
    trainer = lockstep.Trainer(world, net, sgd, lambda m, b: m(b).mean(), strategy="ddp")
    for batch in trainer.batches(rows, global_batch=4):
        trainer.step(batch)
    print("digest", trainer.digest())
"""


@pytest.mark.parametrize("strategy", ["ddp", "torch-ddp"])
@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("data", "different training data: rank 1 differs from rank 0 in sample 0"),
        ("length", "different training data: rank 1 differs from rank 0 in the number of samples (and 2 more): 96 on"),
        ("model", "begin differently: rank 1 differs from rank 0 in parameter 0.weight: float32"),
    ],
)
def test_a_recipe(function: str, words: str, strategy: str, cli: CommandLine) -> None:
    command = ["run", f"{RECIPES}/differing.py:{function}", "--workers", "2", "--strategy", strategy, "--out", "out"]
    done = cli(*command)
    assert words in done.err, done.text
    assert done.code == 1, "it started"


@pytest.mark.parametrize(
    ("data", "model", "code", "words"),
    [
        (True, False, 1, "different training data: rank 1 differs from rank 0 in sample 0"),
        (False, True, 0, "the ranks' models differ, and rank 0's weights are used: rank 1 differs from rank 0 in"),
        (False, False, 0, ""),
    ],
)
def test_an_own_loop(data: bool, model: bool, code: int, words: str, tmp_path: Path, cli: CommandLine) -> None:
    (tmp_path / "loop.py").write_text(OWN_LOOP.format(data=data, model=model))
    done = cli.apart("launch", "--workers", "2", "loop.py")
    assert done.code == code, done.text
    assert words in done.err, done.text
    assert ("differ" in done.err) == bool(words)
