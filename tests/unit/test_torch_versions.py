"""pyproject.toml promises no torch that the tests were not run on, and a page says which those are."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
SUITES = {"unit", "contract"}
"""What has to pass on a version before it is promised: what CI runs on the newest."""


def runs() -> list[dict[str, Any]]:
    every: list[dict[str, Any]] = tomllib.loads((ROOT / "tests" / "torch-versions.toml").read_text())["run"]
    return every


def promise() -> str:
    """Return pyproject's requirement on torch."""
    lines: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return next(line for line in lines if Requirement(line).name == "torch")


def problems(requirement: Requirement, versions: list[Version]) -> list[str]:
    """Return what a requirement promises beyond the versions that were run; patch releases count as run."""
    bounds = {one.operator: Version(one.version) for one in requirement.specifier}
    beyond = [
        f"{operator}: a range of the form >=A.B,<C.D is expected" for operator in bounds if operator not in (">=", "<")
    ]
    lower, upper = bounds.get(">="), bounds.get("<")
    if lower is None or lower not in versions:
        beyond.append(f"the oldest that is promised, {lower}, was not run")
    major, minor = max(versions).release[:2]
    if upper is None or upper.release[:2] > (major, minor + 1):
        beyond.append(f"all below {upper} are promised, and the newest that was run is {max(versions)}")
    return beyond


def test_no_torch_is_promised_that_was_not_run() -> None:
    versions = [Version(run["torch"]) for run in runs() if set(run["suites"]) >= SUITES]
    assert problems(Requirement(promise()), versions) == []


@pytest.mark.parametrize(
    ("requirement", "problem"),
    [
        ("torch>=2.7,<2.16", "2.7, was not run"),
        ("torch>=2.8,<3", "below 3 are promised"),
        ("torch>=2.8,<2.17", "below 2.17 are promised"),
        ("torch>=2.8", "below None are promised"),
        ("torch<2.16", "None, was not run"),
        ("torch>=2.8,<2.16,!=2.10", "!=: a range"),
    ],
)
def test_each_promise_beyond_is_seen(requirement: str, problem: str) -> None:
    (beyond,) = problems(Requirement(requirement), [Version("2.8.0"), Version("2.13.0"), Version("2.15.0")])
    assert problem in beyond


def test_the_pinned_torch_ran_everything() -> None:
    pinned = re.search(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M)
    assert pinned is not None
    suites = {run["torch"]: set(run["suites"]) for run in runs()}
    assert suites[pinned[1]] == {*SUITES, "multiprocess", "system"}


def test_what_ci_leaves_out_on_the_newest_is_told() -> None:
    """Only the file of the benchmarks has the mark, and every promise names the exception."""
    marked = [path for path in (ROOT / "tests").rglob("test_*.py") if "mark.pinned_torch" in path.read_text()]
    assert [path.name for path in marked if path != Path(__file__)] == ["test_benchmarks.py"]
    assert "not pinned_torch" in (ROOT / ".ci" / "run").read_text()
    readme = " ".join((ROOT / "docs" / "torch-versions.md").read_text().split())
    assert "unit and contract tests on the newest, except those of the benchmarks' quick forms" in readme


def test_the_page_says_what_was_run() -> None:
    section = (ROOT / "docs" / "torch-versions.md").read_text()
    rows = [f"| {run['torch']} | {run['python']} | {', '.join(run['suites'])} | `{run['digest']}` |" for run in runs()]
    assert re.findall(r"^\| \d.*$", section, re.M) == rows
    assert f"`{promise()}`" in section
