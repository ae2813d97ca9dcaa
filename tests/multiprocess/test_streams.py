"""Data that comes one after another, and short last batches: the same bits on any number of workers, or a refusal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands import CommandLine, Done

Run = Callable[..., Done]
RECIPE = str(Path(__file__).parents[1] / "recipes" / "stream.py")


@pytest.fixture
def run(cli: CommandLine) -> Run:
    def start(*arguments: str) -> Done:
        return cli("run", *arguments, "--threads", "1", "--json")

    return start


def digest(done: Done) -> str:
    assert done.code == 0, done.text
    result: str = json.loads(done.out)["result"]["digest"]
    return result


@pytest.mark.parametrize("way", [["--workers", "2"], ["--workers", "3", "--strategy", "ddp"], ["--strategy", "dp"]])
def test_one_digest_on_any_number_of_workers(way: list[str], run: Run) -> None:
    for reference, more in ((RECIPE, ["--steps", "10"]), (f"{RECIPE}:counted", ["--drop-last"])):
        alone = digest(run(reference, *more, "--out", f"alone-{more[0]}"))
        assert digest(run(reference, *more, *way, "--out", f"way-{more[0]}")) == alone


def test_going_on_with_a_stream(run: Run) -> None:
    """Thirty samples are four steps: the checkpoint at 6 is in the second pass, the one at 8 at its end."""
    whole = digest(run(RECIPE, "--steps", "10", "--out", "whole"))
    for steps in ("6", "8"):
        done = run(RECIPE, "--steps", steps, "--checkpoint-every", "2", "--out", steps)
        assert done.code == 0, done.text
        assert digest(run("--resume", steps, "--steps", "10", "--workers", "2")) == whole


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([RECIPE], "a stream without __len__"),
        ([f"{RECIPE}:evaluated_on_a_stream", "--steps", "5"], "has no eval_data, and the training data is a stream"),
        ([f"{RECIPE}:normed"], "lane 1 of 4 has 1 sample in step 2 (a batch of 5 samples), and BatchNorm cannot"),
        ([f"{RECIPE}:normed", "--lanes", "8", "--drop-last"], "lane 0 of 8 has 1 sample in step 0"),
    ],
)
def test_refused_before_anything_starts(arguments: list[str], words: str, run: Run, tmp_path: Path) -> None:
    done = run(*arguments, "--workers", "2", "--out", "out")
    assert words in done.err, done.text
    assert done.code == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        [f"{RECIPE}:normed", "--drop-last"],
        [f"{RECIPE}:normed", "--lanes", "2"],
        [f"{RECIPE}:normed", "--global-batch", "12"],
        [f"{RECIPE}:normed", "--steps", "2"],
        [f"{RECIPE}:images"],
    ],
)
def test_the_ways_out_and_what_needs_none(arguments: list[str], run: Run) -> None:
    digest(run(*arguments, "--workers", "2", "--out", "out"))
