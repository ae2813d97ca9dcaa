"""A side of `lockstep bench data` that hits a limit of the machine is a reason; any other failure is an error."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest
import torch

from lockstep.bench.ranks.data.names import LIST, OURS, SERVER, SPAWN
from lockstep.bench.ranks.data.programs import by_hand, in_lightning, start_ranks
from lockstep.bench.ranks.data.sides import make
from lockstep.bench.ranks.data.starting import start
from lockstep.errors import RunFailed

PLAN = {"side": LIST, "items": 300, "elements": 8, "ranks": 1, "how": SPAWN}


def test_more_files_than_allowed_are_a_reason() -> None:
    code = f"from lockstep.bench.ranks.data.programs import start_ranks; print(start_ranks({PLAN!r}))"
    limited = ["sh", "-c", 'ulimit -n 200; exec "$@"', "sh", sys.executable, "-c", code]
    done = subprocess.run(limited, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout == "Too many open files (24) (limit 200)\n", done.stderr
    assert done.stderr == ""


def test_a_program_that_fails_is_an_error() -> None:
    with pytest.raises(RunFailed, match="the program that starts ranks with a list of tensors failed:\nTraceback"):
        start_ranks({**PLAN, "elements": -1})


@pytest.mark.soak  # the quick form of the benchmark does it too
def test_the_program_prints_one_line_of_json() -> None:
    plan = {**PLAN, "ranks": 2}
    command = [sys.executable, "-m", "lockstep.bench.ranks.data.starting", json.dumps(plan)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    started = json.loads(done.stdout)
    assert set(started) == {"start", "handed", "copies", "descriptors", "private", "shared"}
    assert started["descriptors"] > PLAN["items"], "a list costs an open file for each of its tensors"


def test_ranks_from_a_fork_server() -> None:
    """The quick form starts ranks by spawn alone; here they come from the server that these tests have warmed."""
    values = torch.ones(300, 8)
    started = start(make(OURS, values), values.nbytes, 2, SERVER)
    assert set(started) == {"start", "handed", "copies", "descriptors", "private", "shared"}
    assert started["descriptors"] < 50


@pytest.mark.soak  # the quick form of the benchmark does it too
def test_a_small_training_ends_by_hand() -> None:
    assert isinstance(by_hand(OURS, 200, 8), float)


@pytest.mark.soak  # the quick form of the benchmark does it too
def test_a_small_training_ends_in_lightning() -> None:
    installed = importlib.util.find_spec("lightning") is not None
    trained = in_lightning(OURS, 200, 8)
    assert isinstance(trained, float) if installed else trained == "not installed"
