"""No benchmark depends on a default of Lockstep's: each says how many lanes and threads it uses."""

from __future__ import annotations

import ast
from itertools import pairwise
from pathlib import Path

import pytest

from lockstep.bench.bench_start import spawn_command

SOURCE = Path(__file__).parents[3] / "src" / "lockstep" / "bench"
SAID = {"lockstep.Trainer": {"lanes"}, "Share": {"lanes"}, "lockstep.World": {"threads"}}
"""What a call must name, by what is called."""


def calls() -> list[tuple[str, str, set[str | None]]]:
    """Return every call of these classes in the benchmarks: where, of what, and which options it names."""
    return [
        (f"{path.name}:{node.lineno}", ast.unparse(node.func), {one.arg for one in node.keywords})
        for path in sorted(SOURCE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in SAID
    ]


def test_trainers_are_told_their_lanes_and_worlds_their_threads() -> None:
    assert {name for _, name, _ in calls()} == set(SAID)
    assert [where for where, name, options in calls() if not SAID[name] <= options] == []


@pytest.mark.parametrize(("option", "value"), [("--workers", "2"), ("--lanes", "2"), ("--threads", "1")])
def test_the_command_of_start_says_its_sizes(option: str, value: str) -> None:
    assert (option, value) in set(pairwise(spawn_command(Path("run"))))
