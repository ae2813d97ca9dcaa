"""`lockstep fit` from the command line: predictions, and bad input in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.commands import LOCKSTEP, TINY, CommandLine, Marked
from tests.multiprocess.test_stages import NO_CHAIN

NEAR = (0.8, 1.25)
"""Of predicted / measured: the goal of 10 % is judged by `lockstep bench fit`, on a machine that does nothing else."""

DIES = """
import os, signal
from lockstep.recipes import mlp

def recipe():
    return mlp.recipe()

def killed():
    def loss(model, batch):
        os.kill(os.getpid(), signal.SIGKILL)
    return mlp.recipe().override(loss=loss)

def no_memory():
    def loss(model, batch):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 byte.")
    return mlp.recipe().override(loss=loss)

def wrong():
    def loss(model, batch):
        raise ValueError("two\\nlines")
    return mlp.recipe().override(loss=loss)
"""

REFUSED = {
    "unknown unit": (["mlp", "--memory", "2Gigs"], "--memory 2Gigs: there is no unit 'Gigs'"),
    "negative": (["mlp", "--memory=-1GiB"], "at least 1 byte is needed"),
    "absurd": (["mlp", "--memory", "99999999TiB"], "no machine has as much"),
    "no workers": (["mlp", "--workers", "0"], "--workers 0: at least 1 is needed"),
    "words for workers": (["mlp", "--workers", "two"], "numbers separated by commas are needed"),
    "no recipe": (["nothing.py"], "does not exist"),
    "killed": (["dies.py:killed"], "needs more memory than there is here: use more --lanes"),
    "no memory": (["dies.py:no_memory"], "needs more memory than there is here: use more --lanes"),
    "raises": (["dies.py:wrong"], "cannot be measured: one lane of it raised ValueError: two lines"),
    "lanes": (["mlp", "--lanes", "7"], "lanes=7 does not divide the global batch of 64"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_one_line(name: str, tmp_path: Path, cli: CommandLine) -> None:
    (tmp_path / "dies.py").write_text(DIES)
    arguments, said = REFUSED[name]
    done = cli("fit", *arguments)
    assert done.code == 2, done.text
    assert said in done.err
    assert done.err.count("\n") == 1


def test_what_is_predicted_is_what_a_run_takes(tmp_path: Path) -> None:
    """On the recipe with the most weights, for one device, the arena, and a model that is cut."""
    done = Marked().run([LOCKSTEP, "fit", "mlp", "--workers", "1,2", "--json"], tmp_path)
    assert done.code == 0, done.text
    told = json.loads(done.out)
    predicted = {(way["strategy"], way["workers"]): way for way in told["ways"]}
    assert told["command"] == "lockstep run mlp --strategy single --workers 1 --lanes 4"
    assert list(tmp_path.iterdir()) == []
    for strategy, workers in (("single", 1), ("ddp", 2), ("pipeline", 2)):
        way = predicted[strategy, workers]
        assert way["fits"]
        assert way["worker"] == sum(way["parts"].values())
        asked = ["run", "mlp", "--strategy", strategy, "--workers", str(workers), "--steps", "3", "--launcher", "spawn"]
        ran = Marked().run([LOCKSTEP, *asked, "--json", "--out", strategy], tmp_path)
        assert ran.code == 0, ran.text
        measured = max(json.loads(ran.out)["result"]["peak_memory"])
        assert NEAR[0] < way["worker"] / measured < NEAR[1], (strategy, way["parts"], measured)


def test_nothing_fits(cli: CommandLine) -> None:
    done = cli("fit", TINY, "--memory", "1MiB", "--workers", "1,2")
    assert done.code == 0, done.text
    assert "nothing fits in 1.00MiB" in " ".join(done.out.split())


def test_a_model_that_is_no_chain_is_a_row_with_its_reason(cli: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "glued.py").write_text(NO_CHAIN)
    done = cli("fit", "glued.py", "--workers", "2", "--json")
    assert done.code == 0, done.text
    why = {way["strategy"]: way["why_not"] for way in json.loads(done.out)["ways"]}
    assert "second does not get just what first returned" in why["layers"]
    assert why["ddp"] == ""


@pytest.mark.parametrize(
    ("limit", "code", "said"),
    [
        ("100MiB", 0, ""),
        ("1MiB", 2, "2 stages need --stage-memory"),
        ("2Gigs", 2, "there is no unit 'Gigs'"),
    ],
)
def test_the_memory_of_a_stage(limit: str, code: int, said: str, cli: CommandLine, tmp_path: Path) -> None:
    asked = ["run", "mlp", "--strategy", "layers", "--workers", "2", "--stage-memory", limit, "--steps", "1"]
    done = cli(*asked, "--out", "run")
    assert done.code == code, done.text
    assert said in " ".join(done.err.split())
    assert (tmp_path / "run").exists() == (code == 0)


def test_the_memory_of_a_stage_of_a_strategy_that_has_none(cli: CommandLine) -> None:
    done = cli("run", "mlp", "--workers", "2", "--stage-memory", "1GiB")
    assert done.code == 2
    assert "strategy ddp does not cut the model" in " ".join(done.err.split())
