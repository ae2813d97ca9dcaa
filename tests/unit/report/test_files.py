"""What a report is made of: charts, the page, Markdown, JSON, the trace, event files."""

from __future__ import annotations

import itertools
import json
import math
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from lockstep.errors import BadInput
from lockstep.report import svg, theme, units
from lockstep.report.charts import CHARTS, all_charts, times
from lockstep.report.charts.alone import alone
from lockstep.report.charts.losses import styles
from lockstep.report.compare import Comparison
from lockstep.report.files import write_all
from lockstep.report.markdown import markdown
from lockstep.report.page import page
from lockstep.report.rows import Row
from lockstep.report.trace import trace
from lockstep.train.schema.scalars import PARTS
from tests.unit.report.made_up import HOSTILE, example

EVERY = ["times", "scaling", "memory", "parts", "timeline", "losses", "evaluation-1"]
VOID = {"meta", "link", "br", "img", "input", "hr"}


class Checker(HTMLParser):
    """Reads a page and notes elements that are not closed, identifiers used twice, and scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.scripts = 0
        self.inline: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids += [found["id"] or ""] if "id" in found else []
        self.links += [str(found[name]) for name in ("href", "src") if name in found]
        self.inline += [name for name in found if name.startswith("on") or name == "style"]
        self.scripts += tag == "script"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


@pytest.fixture(scope="module")
def made() -> Comparison:
    return example()


def test_every_file_with_a_chart_is_listed() -> None:
    folder = Path(__file__).parents[3] / "src" / "lockstep" / "report" / "charts"
    assert {path.stem for path in folder.glob("*.py") if "\ndef charts(" in path.read_text()} == set(CHARTS)


def test_every_chart_has_words_and_numbers(made: Comparison) -> None:
    charts = all_charts(made)
    assert [chart.key for chart in charts] == EVERY
    for chart in charts:
        assert len(chart.words) > 40
        assert all(len(line) == len(chart.headings) for line in chart.lines), chart.key
        for picture in (chart.wide, chart.narrow):
            root = ElementTree.fromstring(picture)
            assert root.get("role") == "img"
            assert root.get("aria-label") == chart.words
            _, _, width, height = map(float, str(root.get("viewBox")).split())
            for mark in root.iter("{http://www.w3.org/2000/svg}rect"):
                assert float(mark.get("x", 0)) >= 0
                assert float(mark.get("x", 0)) + float(mark.get("width", 0)) <= width + 1
                assert float(mark.get("y", 0)) + float(mark.get("height", 0)) <= height


def test_the_numbers_of_a_chart_are_those_of_the_rows(made: Comparison) -> None:
    bars, scaling, memory, parts, timeline, losses, accuracy = all_charts(made)
    assert bars.lines[0] == ("single", "2.32 s", "2.23 s", "2.53 s", "3", "1.00×")
    assert bars.lines[-1][:2] == ("torch-fsdp", made.rows[-1].why_not)
    assert ("ddp", "4", "11,532", "2.61×", "65 %") in scaling.lines
    assert memory.lines[2] == ("ddp", "0", "310 MiB", "peak RSS")
    assert parts.lines[3][-2:] == ("42.7 ms", "35 %")
    assert timeline.lines[9][:3] == ("ddp", "1", "20")
    assert timeline.lines[9][3].endswith("µs"), "rank 1 begins a little later"
    assert losses.lines[0][0] == "single"
    assert accuracy.title == "Evaluation: accuracy"
    assert accuracy.lines[:2] == (("single", "20", "0.88"), ("single", "40", "0.905"))


def test_a_bar_is_as_long_as_its_time(made: Comparison) -> None:
    root = ElementTree.fromstring(all_charts(made)[3].wide)
    blocks = [mark for mark in root.iter("{http://www.w3.org/2000/svg}rect") if "p-backward" in str(mark.get("class"))]
    widths = {str(mark.get("data-tip")).partition(",")[0]: float(mark.get("width", 0)) for mark in blocks}
    assert (widths["single"] + 1) / (widths["dp"] + 1) == pytest.approx(2.0, rel=0.01)


def test_a_chart_alone_is_a_picture_in_a_frame(made: Comparison) -> None:
    """For pages that are no report: title, legend, colours, and the whole chart."""
    for chart in all_charts(made):
        whole = ElementTree.fromstring(alone(chart))
        namespace = "{http://www.w3.org/2000/svg}"
        (inner,) = whole.findall(f"{namespace}svg")
        assert len(list(inner.iter())) == len(list(ElementTree.fromstring(chart.wide).iter()))
        assert chart.title in [text.text for text in whole.iter(f"{namespace}text")]


def test_charts_without_numbers_are_left_out() -> None:
    nothing = Comparison(title="x", rows=(Row(name="ddp", workers=2, threads=1, why_not="no"),))
    assert all_charts(nothing) == []
    assert "Did not run: no" in page(nothing)
    assert "| ddp | no |" in markdown(nothing)
    assert trace(nothing).trace_events == []


def test_equal_losses_share_a_line() -> None:
    found = styles({"a": (1.0, 2.0), "b": (1.0, 2.0), "c": (1.0, 2.1)})
    assert found["a"].dash == found["b"].dash
    assert found["a"].shift != found["b"].shift
    assert found["c"].shift is None
    assert found["c"].dash is not None, "a whole line would hide the stripes"


def test_losses_that_are_not_finite(made: Comparison) -> None:
    runs = {"single": [replace(made.runs["single"][0], losses=(3.0, math.nan, math.inf, -1.7e308, 1.7e308, 2.0))]}
    losses = next(chart for chart in all_charts(replace(made, runs=runs)) if chart.key == "losses")
    assert "nan" not in re.sub(r"<[^>]*>", "", losses.wide)
    ElementTree.fromstring(losses.wide)
    nothing = {"single": [replace(made.runs["single"][0], losses=(math.nan, 1e301))]}
    assert [chart.key for chart in all_charts(replace(made, runs=nothing))] == [key for key in EVERY if key != "losses"]


def test_the_page_is_whole_and_asks_for_nothing(made: Comparison) -> None:
    text = page(made)
    checker = Checker()
    checker.feed(text)
    assert checker.wrong == []
    assert checker.open == []
    assert len(set(checker.ids)) == len(checker.ids)
    assert checker.scripts == 1
    assert checker.inline == [], "the policy forbids styles and handlers in attributes"
    assert all(link.startswith(("#", "data:")) for link in checker.links)
    assert {link[1:] for link in checker.links if link.startswith("#")} <= set(checker.ids)
    assert len(text.encode()) < 6 * 2**20


@pytest.mark.parametrize("text", [HOSTILE, '"><img src=x onerror=alert(1)>', "'); alert(1); ('", "</style></svg>&amp;"])
def test_text_from_runs_is_escaped(text: str) -> None:
    made = example(text)
    rows = tuple(
        replace(row, name=f"{row.name} {text}", why=text, notes=(text,), parity=text, memory_measure=text)
        for row in made.rows
    )
    runs = {f"{name} {text}": found for name, found in made.runs.items()}
    hostile = replace(made, rows=rows, runs=runs, recommendation=(text, text), versions={text: text}, hosts=(text,))
    checker = Checker()
    written = page(hostile)
    checker.feed(written)
    assert checker.scripts == 1
    assert checker.inline == []
    assert checker.wrong == []
    assert HOSTILE not in written
    outside = re.sub(r"```.*?```", "", markdown(hostile), flags=re.DOTALL)  # inside, Markdown shows all as it is
    assert re.search(r"(?<!\\)<", outside) is None


def test_templates_are_files_of_the_package_and_mark_nothing_safe() -> None:
    folder = files("lockstep.report.page").joinpath("templates")
    texts = {entry.name: entry.read_text(encoding="utf-8") for entry in folder.iterdir()}
    named = {name for text in texts.values() for name in re.findall(r'(?:from|include) "([^"]+)"', text)}
    assert set(texts) == named | {"page.html"}
    assert not [name for name, text in texts.items() if re.search(r"\|\s*safe|autoescape|Markup", text)]


@pytest.mark.parametrize("text", ["\x00\x08", "\ufffe", "<b>&\"'"])
def test_pictures_are_xml_whatever_a_run_says(text: str) -> None:
    made = example(text)
    rows = tuple(replace(row, name=f"{row.name} {text}", why_not=text, memory_measure=text) for row in made.rows)
    runs = {f"{name} {text}": own for name, own in made.runs.items()}
    changed = replace(made, title=text, rows=rows, runs=runs)
    for chart in all_charts(changed):
        ElementTree.fromstring(chart.wide)
        ElementTree.fromstring(chart.narrow)
    ElementTree.fromstring(times.alone(changed.title, changed.rows))


def test_markdown(made: Comparison) -> None:
    text = markdown(made)
    assert text.startswith("# cifar100: 4 lanes, 3 repeats each\n\n- Use ddp on 2 workers")
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 2 + len(made.rows)
    assert len({line.replace("\\|", "").count("|") for line in table}) == 1
    assert "1.24 s (1.19 to 1.36)" in table[4]
    assert "lockstep compare cifar100 --workers 2,4 --steps 40" in text


def test_all_files(made: Comparison, tmp_path: Path) -> None:
    written = write_all(made, tmp_path)
    assert [path.name for path in written] == [
        "report.html",
        "comparison.md",
        "comparison.json",
        "comparison.svg",
        "trace.json",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in written), (
        "no drafts are left"
    )
    content = json.loads((tmp_path / "comparison.json").read_text())
    assert [row["name"] for row in content["rows"]] == [row.name for row in made.rows]
    ElementTree.fromstring((tmp_path / "comparison.svg").read_text())
    write_all(made, tmp_path)  # an earlier report is replaced


def test_the_trace_is_one_that_perfetto_reads(made: Comparison) -> None:
    """The JSON trace event format: what each kind of event must have."""
    content = json.loads(msgspec.json.encode(trace(made)))
    assert content["displayTimeUnit"] in ("ms", "ns")
    named: set[tuple[int, int]] = set()
    ends: dict[tuple[int, int], int] = {}
    for event in content["traceEvents"]:
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        place = (event["pid"], event["tid"])
        if event["ph"] == "M":
            field = {"name": "name", "index": "sort_index"}[event["name"].rpartition("_")[2]]
            assert event["name"].startswith(("process_", "thread_"))
            assert isinstance(event["args"][field], str if field == "name" else int)
            named |= {place} if event["name"] == "thread_name" else set()
            continue
        assert event["ph"] == "X"
        assert event["ts"] >= 0
        assert event["dur"] >= 0
        assert place in named
        start, length = round(event["ts"] * 1000), round(event["dur"] * 1000)
        assert (start / 1000, length / 1000) == (event["ts"], event["dur"]), "whole nanoseconds"
        assert start >= ends.get(place, 0), "spans of a rank do not overlap, not by a nanosecond"
        ends[place] = start + length
    assert len(named) == len({thread for _, thread in named}) == 3 * (1 + 1 + 2 + 2 + 4)
    assert {process for process, _ in named} <= {thread for _, thread in named}, "rank 0 is the main thread"
    assert all(process > 0 for process, _ in named)
    first = next(event for event in content["traceEvents"] if event["ph"] == "X")
    assert (first["name"], first["dur"], first["args"]) == ("data", pytest.approx(1600.0, abs=0.3), {"step": 20})


def test_event_files(made: Comparison, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    written = write_all(replace(made, runs={"ddp": made.runs["ddp"][:1]}), tmp_path, tensorboard=True)
    assert written[-1] == tmp_path / "tensorboard" / "ddp-1"
    read = EventAccumulator(str(written[-1]))
    read.Reload()
    losses = read.Scalars("loss")
    assert [event.step for event in losses] == list(range(40))
    assert [event.value for event in losses] == pytest.approx(made.runs["ddp"][0].losses)
    assert {"exchange_seconds/rank_1", "step_seconds/rank_0", "evaluation/accuracy"} <= set(read.Tags()["scalars"])


def test_event_files_need_the_package(made: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(BadInput, match=r"pip install 'lockstep-train\[tensorboard\]'"):
        write_all(made, tmp_path, tensorboard=True)
    assert list(tmp_path.iterdir()) == [], "refused before any work"


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours as WCAG defines it."""

    def light(colour: str) -> float:
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((light(one), light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colours", [theme.LIGHT, theme.DARK], ids=["light", "dark"])
def test_contrast(colours: dict[str, str]) -> None:
    for name in ("ink", "quiet", "accent", "warn"):
        for ground in ("ground", "card", "tint"):
            assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
    for name in (*(f"series-{number}" for number in range(1, theme.SERIES + 1)), *PARTS):
        assert contrast(colours[name], colours["card"]) >= 3.0, name
    for name in theme.shades():
        assert contrast(colours[name], colours["card"]) >= 4.5, f"{name}: numbers in the card's colour stand on it"
    for one, other in itertools.combinations([name for name in theme.shades() if name.startswith("forward")], 2):
        assert contrast(colours[one], colours[other]) >= 1.2, (one, other)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (units.duration(0.0000312), "31.2 µs"),
        (units.duration(0.04157), "41.6 ms"),
        (units.duration(3.4189), "3.42 s"),
        (units.duration(134.2), "2 min 14 s"),
        (units.duration(None), "–"),
        (units.spread(0.0416, (0.0409, 0.044)), "41.6 ms (40.9 to 44.0)"),
        (units.size(387 * 2**20), "387 MiB"),
        (units.size(1.42 * 2**30), "1.42 GiB"),
        (units.times(1.8249), "1.82×"),
        (svg.tick_labels(svg.ticks(2.53)), ["0", "1", "2"]),
        (svg.tick_labels(svg.ticks(17000.0)), ["0", "5,000", "10,000", "15,000"]),
        (svg.tick_labels(svg.ticks(0.03)), ["0.00", "0.01", "0.02", "0.03"]),
        (svg.ticks(0.0), [0.0]),
        (svg.shorten("a long reason that does not fit", 100), "a long reaso…"),
    ],
)
def test_figures_as_people_read_them(written: object, expected: object) -> None:
    assert written == expected
