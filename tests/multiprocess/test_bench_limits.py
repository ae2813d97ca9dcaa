"""A side of `lockstep bench data` that hits a limit of the machine is a reason; any other failure is an error."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from lockstep.bench.ranks.data.names import LIST
from lockstep.bench.ranks.data.programs import start_ranks
from lockstep.bench.ranks.data.starting import SPAWN
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


def test_the_program_prints_one_line_of_json() -> None:
    command = [sys.executable, "-m", "lockstep.bench.ranks.data.starting", json.dumps(PLAN)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    started = json.loads(done.stdout)
    assert 0 < started["handed"] < started["start"], "the data's part is a part"
    assert started["descriptors"] > PLAN["items"]
