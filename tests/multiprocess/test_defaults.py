"""The same bits where nothing is typed, and the line that gives them again."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from lockstep.recipe_file import BUILT_IN
from tests.commands import TINY, CommandLine, Done


def result_of(done: Done) -> dict[str, Any]:
    assert done.code == 0, done.text
    shown: dict[str, Any] = json.loads(done.out)
    return shown


@pytest.mark.parametrize("recipe", BUILT_IN)
def test_default_digests_do_not_depend_on_the_workers(recipe: str, cli: CommandLine) -> None:
    digests = {}
    for workers in (1, 2, 4):
        command = ["run", recipe, "--workers", str(workers), "--steps", "2", "--json", "--out", f"on-{workers}"]
        result = result_of(cli(*command))["result"]
        assert result["same_bits_up_to"] >= 4
        digests[workers] = result["digest"]
    assert len(set(digests.values())) == 1, digests


def test_the_last_line_gives_the_digest_again_on_other_workers(tmp_path: Path, cli: CommandLine) -> None:
    recipe = tmp_path / "mine.py"
    recipe.write_text(Path(TINY).read_text())
    command = ["run", "mine.py", "--workers", "2", "--lanes", "4", "--seed", "3", "--epochs", "2", "--out", "first"]
    done = cli(*command)
    assert done.code == 0, done.text
    assert "4 lanes: the same bits on any number of workers up to 4" in done.out.splitlines()
    line, arrow, digest = done.out.splitlines()[-1].partition("  ->  ")
    assert arrow
    assert line.startswith("lockstep run mine.py --lanes 4 --seed 3 --threads 1 ")
    for workers in ("1", "3"):
        again = [*shlex.split(line)[1:], "--workers", workers, "--json", "--out", f"on-{workers}"]
        shown = result_of(cli(*again))
        assert shown["result"]["digest"].startswith(digest)
        assert shown["reproduce"] == line


def test_lanes_of_one_per_worker_are_told(tmp_path: Path, cli: CommandLine) -> None:
    done = cli("run", TINY, "--workers", "2", "--steps", "1", "--out", "out")
    assert done.code == 0, done.text
    assert "2 lanes, one per worker: the same bits on 1 or 2 workers" in done.out
    assert json.loads((tmp_path / "out" / "result.json").read_text())["same_bits_up_to"] == 2


def test_a_stock_strategy_promises_nothing(cli: CommandLine) -> None:
    command = ["run", TINY, "--workers", "2", "--strategy", "torch-ddp", "--steps", "1", "--out", "out"]
    done = cli(*command)
    assert done.code == 0, done.text
    assert "the bits depend on the number of workers: strategy torch-ddp" in done.out
    assert f"lockstep run {TINY} --strategy torch-ddp --workers 2 --lanes 2" in done.out.splitlines()[-1]
