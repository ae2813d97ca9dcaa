"""A training whose output cannot be written goes on, and its exit code tells how it went."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from lockstep.report.collect import read_finished
from tests.commands import LOCKSTEP, SECONDS, TINY, Marked

RUN = f"run {TINY}:talks --steps 4 --out out"


def ended(command: str, folder: Path) -> int:
    """Run a command of a shell whose output pipes nobody reads; return its exit code."""
    env = {**Marked().env, "PYTHONIOENCODING": "ascii"}
    process = subprocess.Popen(
        ["sh", "-c", f"exec {LOCKSTEP} {command}"],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    for pipe in (process.stdout, process.stderr):
        assert pipe is not None
        pipe.close()
    return process.wait(SECONDS)


@pytest.mark.parametrize(
    "command",
    [f"{RUN} --workers 2 >/dev/full 2>/dev/full", f"{RUN} >&- 2>&-", f"{RUN} --workers 2 --launcher torchrun"],
    ids=["full", "closed", "a reader that went away"],
)
def test_the_run_ends_well(command: str, tmp_path: Path) -> None:
    assert ended(command, tmp_path) == 0
    assert read_finished(tmp_path / "out").result.steps == 4


def test_a_failed_run_still_says_so_by_its_exit_code(tmp_path: Path) -> None:
    assert ended(f"run {TINY}:raises --workers 2 --out out >/dev/full 2>/dev/full", tmp_path) == 1


def test_a_command_whose_only_product_is_its_output_fails_without_it(tmp_path: Path) -> None:
    assert ended("doctor --json >/dev/full", tmp_path) == 1
