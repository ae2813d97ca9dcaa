"""Blocks, sentences and pictures of the pages are those of the saved results; nothing is written by hand."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest

from lockstep.bench.contract.figure_files import FIGURES, PLAN, UNSAVED, against, filled, named, pages, saved
from lockstep.bench.contract.registry import BENCHMARKS

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"
COMMAND = "make figures, or scripts/figures --fill where only a page changed"


@pytest.mark.parametrize("page", pages(ROOT), ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_are_made_of_saved_results(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert filled(text, *saved(ROOT)) == text, f"{page.name} and {FIGURES} differ: {COMMAND}"


def test_what_is_not_saved_yet_is_listed() -> None:
    """So that no block without a result goes unseen, and none stays listed."""
    results, comparisons = saved(ROOT)
    shown = {name for page in pages(ROOT) for name in named(page.read_text(encoding="utf-8"))}
    assert shown - set(results) - set(comparisons) == set((ROOT / UNSAVED).read_text().split()), COMMAND


def test_the_plan_has_everything_that_is_shown() -> None:
    plan = tomllib.loads((ROOT / PLAN).read_text())
    shown = {name for page in pages(ROOT) for name in named(page.read_text(encoding="utf-8"))}
    assert shown <= {*plan["bench"], *plan["compare"]}
    assert set(plan["bench"]) <= set(BENCHMARKS.names())
    files = {file.stem for file in (ROOT / FIGURES).glob("*.json")}
    assert files <= {*plan["bench"], *plan["compare"]}
    made = {f"{name}-{chart}.svg" for name, how in plan["compare"].items() for chart in how["charts"]}
    assert {file.name for file in (ROOT / FIGURES).glob("*.svg")} <= made


def test_pictures_of_the_pages_are_there() -> None:
    for page in pages(ROOT):
        for name in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / name).is_file(), f"{page}: {name}"


@pytest.mark.parametrize("picture", sorted((ROOT / FIGURES).glob("*.svg")), ids=lambda picture: picture.stem)
def test_a_picture_is_one_that_a_browser_shows(picture: Path) -> None:
    """A chart inside a frame with its title: what is not well formed is a broken image."""
    whole = ElementTree.parse(picture).getroot()
    assert len(whole.findall(f"{SVG}svg")) == 1


def test_a_changed_number_is_found() -> None:
    """The test above can fail: another number in a result gives another page."""
    results, comparisons = saved(ROOT)
    for one in comparisons.values():
        one["rows"][0]["step_seconds"] = 12345.0
    texts = [page.read_text(encoding="utf-8") for page in pages(ROOT)]
    assert any(filled(text, results, comparisons) != text for text in texts)


def test_this_machine_against_the_saved() -> None:
    for file in sorted((ROOT / FIGURES).glob("*.json")):
        first, *lines = against(file.read_bytes(), file.read_bytes())
        assert "saved (" in first
        assert lines
        assert all(
            "1.00 of it" in line or len(set(re.findall(r": ([\d.]+), ([\d.]+) \(", line)[0])) == 1 for line in lines
        )
