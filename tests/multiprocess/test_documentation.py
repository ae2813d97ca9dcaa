"""README, documentation and examples: every block is run, or is what the tool prints. See `tests/documentation`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands import CommandLine
from tests.documentation.blocks import blocks
from tests.documentation.following import ROOT, Follower

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ELSEWHERE = {
    "notebooks": "tests/multiprocess/test_notebook_kernel.py",
    "launcher-": "tests/system/test_launcher_pages.py",
    "slurm-jobs": "tests/system/test_launcher_pages.py",
    "tensorflow": "tests/system/test_tensorflow.py",
}
"""Pages whose commands need a service, by the beginning of their names, with the test that runs them as they stand."""


def elsewhere(page: Path) -> str | None:
    """Return the test that follows a page, if it is not this one."""
    return next((test for name, test in ELSEWHERE.items() if page.name.startswith(name)), None)


WITH_BLOCKS = [page for page in PAGES if blocks(page) and elsewhere(page) is None]


def test_pages_that_are_followed_elsewhere_are() -> None:
    for name, test in ELSEWHERE.items():
        if any(page.name.startswith(name) for page in PAGES):
            assert name in (ROOT / test).read_text(encoding="utf-8"), f"{test} does not name the pages {name}*"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", WITH_BLOCKS, ids=lambda page: str(page.relative_to(ROOT)))
def test_page(page: Path, cli: CommandLine, tmp_path: Path) -> None:
    follower = Follower(tmp_path, cli)
    for block in blocks(page):
        follower.follow(block)
