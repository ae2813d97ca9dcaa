"""The terminal's tables: what fits is shown, the most telling first; text is text."""

from __future__ import annotations

import io
from dataclasses import replace

import msgspec
import pytest
from rich.console import Console

from lockstep.report.charts import memory
from lockstep.report.compare import Comparison, judge
from lockstep.report.markdown import markdown
from lockstep.report.page import page
from lockstep.report.render import run_lines
from lockstep.report.terminal import show
from tests.unit.report.causes import compared, parts, run, way
from tests.unit.report.values import rank_result

SINGLE = run("single", ranks=[parts(forward=60, backward=120)])
OTHER = run("torch-ddp", 2, ranks=[parts(exchange=60)] * 2, sent=26_000_000, backend="gloo", state="b")


def printed(found: Comparison, width: int, *, per_rank: bool = False) -> str:
    text = io.StringIO()
    show(found, Console(file=text, width=width), per_rank=per_rank)
    return text.getvalue()


@pytest.mark.parametrize(
    ("width", "shown", "left_out"),
    [
        (180, ["step", "start-up", "threads", "ciency", "samples/s", "accuracy", "parity", "digest"], []),
        (80, ["step", "speed-up", "parity", "workers"], ["start-up", "digest", "threads"]),
        (40, ["step", "single"], ["samples/s"]),
    ],
)
def test_columns_that_do_not_fit_are_left_out(width: int, shown: list[str], left_out: list[str]) -> None:
    text = printed(compared(SINGLE, OTHER), width)
    table = text[text.index("made up") : text.index("where a step goes")]
    assert all(word in table for word in shown)
    assert not any(word in table for word in left_out)
    assert max(len(line.rstrip()) for line in table.splitlines()) <= width
    assert "…" not in table


def test_headings_are_whole_where_names_are_short() -> None:
    found = compared(run("ddp", 2))
    for width in range(60, 180, 3):
        assert "…" not in printed(found, width).partition("where a step goes")[0]


def test_everything_that_was_judged_is_said() -> None:
    text = printed(compared(SINGLE, OTHER), 200, per_rank=True)
    for words in (
        "Fastest: torch-ddp",
        "why torch-ddp: spends 38% of the step exchanging 26 MB over gloo",
        "parity torch-ddp: differs: other order of summation",
        "by rank",
        "24.8 MiB",
    ):
        assert words in text


def test_one_repeat_of_few_steps_is_shown_without_a_spread() -> None:
    """On the terminal, on the page and in Markdown alike."""
    few, enough = ([run(name, losses=[4.0] * steps) for name in ("single", "ddp")] for steps in (3, 5))
    for text in (printed(compared(*few), 200), page(compared(*few)), markdown(compared(*few))):
        assert "cannot be told: one repeat" in text
        assert "100 ms" in text
        assert not any(sign in text for sign in ("±", "Fastest", "100 ms (", 'class="whisker"'))
    assert "100 ms ±2%" in printed(compared(*enough), 200)
    assert "100 ms (98.0 to 102)" in page(compared(*enough))
    assert 'class="whisker"' not in page(compared(*enough)), "its line is over repeats"
    several = judge("t", [way("single", run("single"), run("single"))])
    assert 'class="whisker"' in page(several)


def test_what_torch_held_of_accelerators_is_shown_where_there_are_any() -> None:
    ranks = [rank_result(rank, parts(), peak_reserved=(rank + 5) << 20) for rank in range(2)]
    there = msgspec.structs.replace(OTHER.result, ranks=tuple(ranks), peak_reserved=(5 << 20, 6 << 20))
    found = compared(SINGLE, replace(OTHER, result=there))
    assert "reserved" not in printed(compared(SINGLE, OTHER), 200, per_rank=True) + markdown(compared(SINGLE, OTHER))
    assert "reserved, largest rank" in markdown(found)
    text = printed(found, 200, per_rank=True)
    assert text.count("6.00 MiB") == 2, "of the largest, and by rank"
    assert text.count("5.00 MiB") == 1
    [chart] = memory.charts(found)
    assert chart.headings[-1] == "reserved"
    assert [line[-1] for line in chart.lines] == ["–", "5.00 MiB", "6.00 MiB"]
    assert "reserved 5 + 6 MiB" in "\n".join(run_lines(replace(OTHER, result=there)))


def test_a_metric_called_loss_is_not_taken_for_the_loss() -> None:
    found = compared(run("single", metrics={"loss": 0.25, "accuracy": 0.5}))
    text = printed(found, 200, per_rank=True)
    assert "0.2500" not in text, "a terminal has little room"
    assert text.count("3.0000") == 2, "of the last step, in both tables"
    assert "| loss | loss, evaluated | accuracy |" in markdown(found)


def test_what_did_not_run_says_why_and_markup_is_text() -> None:
    found = judge("[bold]t", [way("single", SINGLE), way("ddp", why_not="[red]no GPU[/red]")])
    text = printed(found, 160)
    assert "did not run ddp: [red]no GPU[/red]" in text
    assert "[bold]t" in text
    assert "did not run" in printed(judge("t", [way("ddp", why_not="no")]), 60)


def test_a_reason_of_several_ways_is_printed_once() -> None:
    none = [way(name, why_not="no GPU") for name in ("dp", "ddp")]
    assert "did not run dp; ddp: no GPU" in printed(judge("t", [way("single", SINGLE), *none]), 160)
    assert "did not run all of them: no GPU" in printed(judge("t", none), 160)
    other = judge("t", [*none, way("torch-ddp", why_not="no time")])
    assert "did not run dp; ddp: no GPU\ndid not run torch-ddp: no time" in printed(other, 160)


@pytest.mark.parametrize("width", range(60, 200, 7))
def test_a_way_that_did_not_run_cuts_nothing(width: int) -> None:
    """The words in its first cell are as wide as they are: a column is left out, and no cell ends in an ellipsis."""
    assert "\u2026" not in printed(judge("t", [way("single", SINGLE), way("ddp", why_not="no GPU")]), width)
