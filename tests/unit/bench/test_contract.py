"""The contract of benchmarks: options, what a result accepts, how it is judged, shown, saved and put into pages."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from lockstep.bench.contract import (
    Benchmark,
    BenchOption,
    BenchSettings,
    Cell,
    Goal,
    Measurements,
    Quantity,
    Result,
    Side,
    Table,
    TableColumn,
    Tell,
    Unit,
    at_least,
    at_most,
    decode,
    encode,
    figure,
    measure,
    median,
    median_and_quartiles,
    repeats,
    seconds,
    settings,
)
from lockstep.bench.contract.cells import cell_text, figure_texts, number
from lockstep.bench.contract.console_tables import show
from lockstep.bench.contract.doc_tables import MarkedBlock, blocks, fill, named_table
from lockstep.bench.contract.figure_files import fill_pages
from lockstep.errors import BadInput

REPEATS = repeats(20)
WORKERS = BenchOption(name="workers", help="How many.", default=(2, 4), quick=(2,), minimum=2)
MODELS = BenchOption(
    name="models", help="Which.", default=("mlp", "cifar100"), quick=("mlp",), choices=("mlp", "cifar100")
)
OPTIONS = (REPEATS, WORKERS, MODELS)


def _run(_: BenchSettings, tell: Tell) -> Measurements:
    tell("the only phase")
    ours, theirs = seconds("ours", median([0.010, 0.012, 0.020])), seconds("theirs", median([0.030] * 3))
    row: dict[str, Cell] = {"who": "both", "workers": 2, "ours": ours.measured, "theirs": theirs.measured}
    columns = (
        TableColumn(name="who"),
        TableColumn(name="workers"),
        TableColumn(name="ours", unit=Unit.SECONDS, spread="fastest to slowest"),
        TableColumn(name="theirs", unit=Unit.SECONDS, beside="ours"),
    )
    table = Table(name="times", title="the times", columns=columns, rows=(row, {"who": "third", "ours": "it failed"}))
    judged = figure(
        "ours / theirs", ours, theirs, at_most(0.3), Quantity(value=0.4, low=0.3, high=0.5), "single starts"
    )
    return Measurements(tables=(table,), figures=(judged,), notes=("a [note]",))


TOY = Benchmark(name="toy", help="A toy", options=OPTIONS, run=_run)


def result(*, quick: bool = False) -> Result:
    """Return what the toy measures, in an environment that is the same everywhere."""
    made = measure(TOY, settings(OPTIONS, {}, quick=quick), lambda _: None)
    return replace(made, environment={"torch": "2", "python": "3", "cpus": 2}, seconds=1.0)


@pytest.mark.parametrize(
    ("option", "text", "value"),
    [(REPEATS, "3", 3), (WORKERS, "2, 8", (2, 8)), (MODELS, "cifar100,mlp", ("cifar100", "mlp"))],
)
def test_what_is_typed_is_read(option: BenchOption[int], text: str, value: object) -> None:
    assert option.read(text) == value


@pytest.mark.parametrize(
    ("option", "text", "message"),
    [
        (REPEATS, "many", "--repeats many: expected a whole number"),
        (REPEATS, "", "--repeats '': expected a whole number"),
        (REPEATS, "0", "--repeats 0: expected at least 1"),
        (WORKERS, "2,x", "--workers x: expected numbers separated by commas, for example 2,4"),
        (WORKERS, "2,1", "--workers 1: expected at least 2"),
        (MODELS, "mpl", "--models: there is no 'mpl'; did you mean 'mlp'?"),
    ],
)
def test_what_cannot_be_is_refused(option: BenchOption[int], text: str, message: str) -> None:
    with pytest.raises(BadInput) as refused:
        option.read(text)
    assert str(refused.value) == message


def test_what_is_given_wins_over_quick_and_default() -> None:
    quick = settings(OPTIONS, {"workers": (4,), "repeats": None}, quick=True)
    assert (quick[REPEATS], quick[WORKERS], quick[MODELS]) == (1, (4,), ("mlp",))
    full = settings(OPTIONS, {"repeats": 3}, quick=False)
    assert (full[REPEATS], full[WORKERS], full[MODELS]) == (3, (2, 4), ("mlp", "cifar100"))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_only_finite_numbers_are_measured(value: float) -> None:
    for broken in ({"value": value}, {"value": 1.0, "low": value}, {"value": 1.0, "samples": (value,)}):
        with pytest.raises(ValueError, match="expected finite numbers"):
            Quantity(**broken)


def test_a_number_needs_its_column_and_unit() -> None:
    for row in ({"gone": 1}, {"who": Quantity(value=1.0)}):
        with pytest.raises(ValueError, match="needs that column"):
            Table(name="t", title="t", columns=(TableColumn(name="who"),), rows=(row,))


@pytest.mark.parametrize(
    ("goal", "ratio", "reached"),
    [(at_most(0.5), 0.5, True), (at_most(0.5), 0.51, False), (at_least(3.0), 3.0, True), (at_least(3.0), 2.9, False)],
)
def test_goals(goal: Goal, ratio: float, reached: bool) -> None:
    assert goal.reached(ratio) is reached


def test_a_ratio_is_ours_over_theirs_or_how_many_times_as_fast() -> None:
    ours, theirs = seconds("ours", Quantity(value=2.0)), seconds("theirs", Quantity(value=8.0))
    assert figure("x", ours, theirs, at_most(0.3)).ratio.value == 0.25
    faster = figure("x", ours, theirs, at_least(5.0))
    assert (faster.ratio.value, faster.reached) == (4.0, False)


def test_spreads() -> None:
    assert median([3.0, 1.0, 2.0]) == Quantity(value=2.0, low=1.0, high=3.0, samples=(3.0, 1.0, 2.0))
    assert median_and_quartiles([1.0, 2.0, 3.0, 4.0, 5.0]).ends == (2.0, 4.0)
    assert median_and_quartiles([1.0]).ends == (1.0, 1.0)


def test_a_full_run_judges_and_a_quick_run_does_not() -> None:
    told: list[str] = []
    full = measure(TOY, settings(OPTIONS, {}, quick=False), told.append)
    assert told == ["the only phase"]
    assert [one.reached for one in full.figures] == [False]
    assert (full.benchmark, full.quick, full.settings["workers"]) == ("toy", False, (2, 4))
    assert [one.reached for one in result(quick=True).figures] == [None]


def test_a_check_comes_before_the_run() -> None:
    def refuse(chosen: BenchSettings) -> None:
        raise BadInput(f"not with {chosen[WORKERS]}")

    with pytest.raises(BadInput, match="not with"):
        measure(replace(TOY, check=refuse), settings(OPTIONS, {}, quick=True), pytest.fail)
    with pytest.raises(BadInput, match="no such machine"):
        measure(replace(TOY, unavailable=lambda: "no such machine"), settings(OPTIONS, {}, quick=True), pytest.fail)


def test_json_and_back() -> None:
    whole = result()
    assert decode(encode(whole)) == whole


@pytest.mark.parametrize("text", ['{"benchmark": "toy"}', '{"benchmark": 1}', "[]"])
def test_other_json_is_refused(text: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        decode(text)


@pytest.mark.parametrize(
    ("unit", "measured", "text"),
    [
        (Unit.SECONDS, Quantity(value=0.0416, low=0.0409, high=0.044), "41.6 ms (40.9 to 44.0)"),
        (Unit.SECONDS, Quantity(value=0.0416, low=0.0416, high=0.0416), "41.6 ms"),
        (Unit.BYTES, Quantity(value=387 * 2**20), "387 MiB"),
        (Unit.COUNT, Quantity(value=29_362_708), "29,362,708"),
        (Unit.RATIO, Quantity(value=0.5), "0.50"),
        (Unit.RATIO, Quantity(value=0.00061), "0.00061"),
        (Unit.RATIO, Quantity(value=1.0, low=0.0, high=123.4), "1.00 (0.00 to 123)"),
        (Unit.SHARE, Quantity(value=0.015, low=-0.002, high=0.02), "+1.5% (-0.2% to +2.0%)"),
    ],
)
def test_numbers_read_well(unit: Unit, measured: Quantity, text: str) -> None:
    assert number(unit, measured) == text


def test_cells() -> None:
    table = result().tables[0]
    assert [cell_text(column, table.rows[0]) for column in table.columns] == [
        "both",
        "2",
        "12.0 ms (10.0 to 20.0)",
        "30.0 ms (2.50)",
    ]
    assert [cell_text(column, table.rows[1]) for column in table.columns] == ["third", "", "it failed", ""]


def test_a_figure_shows_both_sides_and_how_it_was_judged() -> None:
    (full,), (quick,) = result().figures, result(quick=True).figures
    shown = ("ours / theirs", "ours: 12.0 ms", "theirs: 30.0 ms", "0.40 (0.30 to 0.50, single starts)", "at most 0.3")
    assert figure_texts(full) == (*shown, "missed")
    assert figure_texts(replace(full, reached=True)) == (*shown, "reached")
    assert figure_texts(quick) == (*shown, "not judged")


@pytest.mark.parametrize("quick", [False, True])
def test_a_terminal_shows_all_of_it(quick: bool) -> None:
    console = Console(file=io.StringIO(), width=160)
    show(result(quick=quick), console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for words in ("lockstep bench toy", "the times", "12.0 ms", "it failed", "at most 0.3", "a [note]", "torch 2"):
        assert words in text
    assert ("QUICK RUN" in text, "not judged" in text, "missed" in text) == (quick, quick, not quick)


def test_markdown() -> None:
    assert named_table(result(), "times").splitlines() == [
        "| who | workers | ours (fastest to slowest) | theirs (to ours) |",
        "| --- | --- | ---: | ---: |",
        "| both | 2 | 12.0 ms (10.0 to 20.0) | 30.0 ms (2.50) |",
        "| third |  | it failed |  |",
    ]
    (line,) = named_table(result(), "figures").splitlines()[2:]
    assert line.startswith("| ours / theirs | ours: 12.0 ms | theirs: 30.0 ms | 0.40 (0.30 to 0.50, single starts) |")
    assert line.endswith("| at most 0.3 | missed |")
    with pytest.raises(BadInput, match="toy has no table 'gone'; it has times, figures"):
        named_table(result(), "gone")


def test_markdown_shows_words_as_they_are() -> None:
    side = Side(name="a|b `c`", unit=Unit.COUNT, measured=Quantity(value=1))
    odd = replace(result(), figures=(figure("<b>", side, side, at_most(1.0)),))
    assert r"| \<b\> | a\|b \`c\`: 1 |" in named_table(odd, "figures")


PAGE = """above
<!-- bench toy: times figures -->
old
<!-- /bench -->
between
<!-- bench other: times -->
stays
<!-- /bench -->
"""


def test_marked_blocks_are_made_from_results() -> None:
    assert [(block.benchmark, block.tables) for block in blocks(PAGE)] == [
        ("toy", ("times", "figures")),
        ("other", ("times",)),
    ]
    made = result()
    filled = fill(PAGE, {"toy": made})
    inside = f"{named_table(made, 'times')}\n\n{named_table(made, 'figures')}"
    assert filled == PAGE.replace("old", inside)
    assert fill(filled, {"toy": made}) == filled
    empty = "<!-- bench toy: figures -->\n<!-- /bench -->\n"
    assert blocks(empty) == [MarkedBlock("toy", ("figures",))]
    assert fill(empty, {"toy": made}).splitlines()[1:-1] == named_table(made, "figures").splitlines()


def test_pages_are_filled_from_saved_results(tmp_path: Path) -> None:
    folder = tmp_path / "docs" / "figures"
    folder.mkdir(parents=True)
    page = tmp_path / "README.md"
    page.write_text(PAGE)
    (folder / "toy.json").write_text(encode(result()))
    assert list(fill_pages(tmp_path)) == [page]
    assert page.read_text() == fill(PAGE, {"toy": result()})
    assert "toy" not in (folder / "unsaved.txt").read_text().split()
    (folder / "toy.json").write_text(encode(result(quick=True)))
    with pytest.raises(BadInput, match="quick run"):
        list(fill_pages(tmp_path))
