"""The report in a real browser: every chart, both themes, a laptop and a phone, and no mouse."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from lockstep.report.compare import judge
from lockstep.report.files import write_all
from tests.services import require
from tests.system.browser import LAPTOP, PHONE, Browser, Programs, Theme
from tests.unit.report.causes import way
from tests.unit.report.made_up import HOSTILE, example
from tests.unit.report.made_up_stages import stage_run

CHARTS = ("times", "scaling", "memory", "parts", "timeline", "lane-flow", "losses", "evaluation-1")
VISIBLE = (
    "const e = document.querySelector(arguments[0]); const b = e.getBoundingClientRect(); return b.width * b.height"
)
GROUND = "return getComputedStyle(document.body).backgroundColor"
LIGHT, DARK = "rgb(246, 247, 249)", "rgb(15, 18, 24)"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made, cut = example(HOSTILE), judge("cut", [way("pipeline", stage_run())])
    both = replace(made, rows=(*made.rows, *cut.rows), runs={**made.runs, **cut.runs})
    return write_all(both, tmp_path_factory.mktemp("report"))[0]


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    programs = Programs(chromium=require("chromium"), driver=require("chromedriver"))
    with Browser(programs, tmp_path / "profile") as found:
        yield found


def test_the_report_in_a_browser(browser: Browser, page: Path) -> None:
    """One browser for all of it: starting one costs more than looking."""
    charts_and_tables(browser, page)
    for size in (LAPTOP, PHONE, (768, 1024)):
        nothing_sticks_out(browser, page, size)
    theme_by_keyboard(browser, page, "light")
    theme_by_keyboard(browser, page, "dark")
    order_of_tabs(browser, page)
    rows_that_unfold(browser, page)
    words_at_the_pointer(browser, page)
    lanes_in_both_themes(browser, page)
    assert browser.requests() == {page.as_uri()}, "the page opens offline"
    assert browser.console() == [], "nothing was refused or raised"


def charts_and_tables(browser: Browser, page: Path) -> None:
    browser.open(page)
    for key in CHARTS:
        for shown, hidden, size in (("wide", "narrow", LAPTOP), ("narrow", "wide", PHONE)):
            browser.resize(*size)
            assert browser.run(VISIBLE, f"#{key} .{shown} svg[role=img]") > 20_000, key
            assert browser.run(VISIBLE, f"#{key} .{hidden}") == 0, key
        assert len(browser.run(f"return document.querySelector('#{key} svg[role=img]').ariaLabel")) > 40
        assert browser.run(f"return document.querySelectorAll('#{key} details tbody tr').length") > 0
    assert browser.run("return document.title") == f"{HOSTILE}: 4 lanes, 3 repeats each"
    assert browser.run("return document.querySelectorAll('h1').length") == 1
    levels = browser.run("return [...document.querySelectorAll('h1,h2,h3')].map(h => +h.tagName[1])")
    assert all(after <= before + 1 for before, after in pairwise(levels))
    for mark in ("header", "nav[aria-label]", "main", "footer"):
        assert browser.run(f"return document.querySelectorAll('{mark}').length") == 1
    bare = "return [...document.querySelectorAll('table')].filter(t => !t.caption || !t.querySelector('th[scope=col]'))"
    assert browser.run(bare) == []
    assert browser.run("return document.querySelectorAll('th:not([scope])').length") == 0
    assert browser.run("return document.querySelectorAll('section:not([aria-labelledby])').length") == 0


def nothing_sticks_out(browser: Browser, page: Path, size: tuple[int, int]) -> None:
    browser.open(page, size)
    browser.run("for (const d of document.querySelectorAll('details')) d.open = true")
    assert browser.run("return document.documentElement.scrollWidth") == size[0], "the page itself does not scroll"
    table = "const t = document.querySelector('#table .scroll'); return t.scrollWidth > t.clientWidth"
    assert browser.run(table) == (size != LAPTOP), "a laptop shows the whole table; elsewhere it scrolls in its box"
    smallest = """return Math.min(...[...document.querySelectorAll('figure svg text')]
        .filter(t => t.getBoundingClientRect().width)
        .map(t => parseFloat(getComputedStyle(t).fontSize) * t.getScreenCTM().a))"""
    assert browser.run(smallest) > 9.5, "text of charts can be read"


def theme_by_keyboard(browser: Browser, page: Path, theme: Theme) -> None:
    browser.open(page, theme=theme)
    first, other = (LIGHT, DARK) if theme == "light" else (DARK, LIGHT)
    pressed = "return document.getElementById('theme').ariaPressed"
    assert browser.run(GROUND) == first, "the reader's own setting comes first"
    assert browser.run(pressed) == str(theme == "dark").lower()
    browser.tab()
    assert browser.tab() == "theme"
    assert browser.run("return document.activeElement.matches(':focus-visible')")
    browser.press(Keys.SPACE)
    assert browser.run(GROUND) == other
    assert browser.run(pressed) == str(theme != "dark").lower()
    browser.driver.refresh()
    assert browser.run(GROUND) == other, "it is kept"


def order_of_tabs(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert browser.tab() == "Skip to the report"
    assert browser.run("return document.activeElement.getBoundingClientRect().top") >= 0, "it can be seen now"
    browser.press(Keys.ENTER)
    assert browser.run("return document.activeElement.id") == "main"
    browser.open(page)
    reached = [browser.tab() for _ in range(4)]
    assert reached == ["Skip to the report", "theme", "Recommendation", "Training time"]
    after = """const all = [...document.querySelectorAll('a,button,summary,[tabindex="0"]')];
        return all.every((e, i) => e.tabIndex >= 0 && (!i || all[i - 1].compareDocumentPosition(e) & 4))"""
    assert browser.run(after), "the order is that of the page"


def rows_that_unfold(browser: Browser, page: Path) -> None:
    browser.open(page)
    count = "return [...document.querySelectorAll('tr.ranks')].filter(r => !r.hidden).length"
    assert browser.run(count) == 0
    browser.run("document.querySelectorAll('.more')[2].focus()")
    browser.press(Keys.ENTER)
    assert browser.run(count) == 1
    assert browser.run("return document.querySelectorAll('.more')[2].ariaExpanded") == "true"
    assert browser.run("return document.querySelectorAll('#ranks-2 tbody tr').length") == 2
    browser.press(Keys.ENTER)
    assert browser.run(count) == 0


def words_at_the_pointer(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.run("""const mark = document.querySelector('#times .wide [data-tip]');
        mark.dispatchEvent(new PointerEvent('pointermove', {bubbles: true, clientX: 300, clientY: 300}))""")
    assert browser.run("return document.getElementById('tip').textContent").startswith("single: 2.32 s, 2.23 s to")
    browser.press(Keys.ESCAPE)
    assert browser.run("return document.getElementById('tip').hidden")


def lanes_in_both_themes(browser: Browser, page: Path) -> None:
    """Forward and backward differ in colour and in place, in both themes; a number does not hide its bar's words."""
    place = """const e = document.querySelector(arguments[0]);
        return [getComputedStyle(e).fill, e.getBoundingClientRect().top]"""
    seen = set()
    themes: tuple[Theme, ...] = ("light", "dark")
    for theme in themes:
        browser.open(page, theme=theme)
        (upper, top), (lower, below) = (
            browser.run(place, f"#lane-flow .wide .p-{way}-1") for way in ("forward", "backward")
        )
        assert upper != lower
        assert below > top
        seen |= {upper, lower}
    assert len(seen) == 4, "each theme has its own"
    browser.run("""const bar = document.querySelector('#lane-flow .wide .p-forward-1').getBoundingClientRect();
        scrollTo(0, bar.top + scrollY - 200)""")
    under = """const bar = document.querySelector('#lane-flow .wide .p-forward-1').getBoundingClientRect();
        return document.elementFromPoint(bar.left + bar.width / 2, bar.top + bar.height / 2).dataset.tip"""
    assert "forward of lane 0" in browser.run(under)
