"""`lockstep docs`: every page is listed, found by what people type, and shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lockstep import doc_pages
from lockstep.doc_pages import every_page, find_page
from lockstep.errors import BadInput
from tests.commands import CommandLine

DOCS = Path(__file__).parents[2] / "docs"


def test_all_pages_are_listed_with_their_titles() -> None:
    pages = every_page()
    assert {page.path for page in pages} == {*DOCS.glob("*.md"), *(DOCS / "guide").glob("*.md")}
    assert pages[0].name == "guide/00-setting-up"
    assert all(page.title != page.path.stem for page in pages)


@pytest.mark.parametrize("typed", ["5", "05", "guide/05-model-parallelism", "05-model-parallelism"])
def test_a_chapter_is_found_by_what_people_type(typed: str) -> None:
    assert find_page(typed).name == "guide/05-model-parallelism"


def test_a_page_is_found_by_its_name_and_by_its_file() -> None:
    assert find_page("failures") == find_page("docs/failures.md") == find_page("failures.md")


def test_an_unknown_page_is_refused_with_the_nearest() -> None:
    with pytest.raises(BadInput, match=r"no page is called 'failure' .*did you mean 'failures'"):
        find_page("failure")


def test_those_of_an_installed_package_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shipped.md").write_text("# Came with the package\n", encoding="utf-8")
    monkeypatch.setattr(doc_pages, "INSTALLED", tmp_path)
    assert [(page.name, page.title) for page in every_page()] == [("shipped", "Came with the package")]


def test_the_command_shows_a_page_as_it_was_written_where_nobody_looks(cli: CommandLine) -> None:
    assert cli("docs", "failures").out == (DOCS / "failures.md").read_text(encoding="utf-8")
    assert "guide/13-hangs-and-slow" in cli("docs").out
    (page,) = json.loads(cli("docs", "failures", "--json").out)
    assert Path(page["path"]) == DOCS / "failures.md"
    assert cli("docs", "nonsense").code == 2
