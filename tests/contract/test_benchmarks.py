"""Every benchmark keeps the contract: the quick form runs from the command line, a rank that fails is one message."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from lockstep.bench.contract import Figure, Quantity, Result, Table, decode
from lockstep.bench.contract.console_tables import show
from lockstep.bench.contract.doc_tables import blocks, fill
from lockstep.bench.contract.registry import BENCHMARKS
from lockstep.report.render import WIDTH
from tests.commands import LOCKSTEP, Done, Marked

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FAULTS = str(ROOT / "tests" / "faults")
NAMES = BENCHMARKS.names()
pytestmark = [pytest.mark.timeout(1500), pytest.mark.pinned_torch]
SECONDS = 1200
"""Until a hang is assumed: a quick run takes seconds on idle cores, and minutes on cores that many others use."""
ON_A_TERMINAL = "syncbn"
"""It reads memory with torch's profiler, which logs hundreds of lines unless it is told not to."""
ROUNDING = 1e-9
WITH_GROUPS = "collectives"
ALWAYS_FAILED = ("fit", "hosts", "syncbn")
"""One for each way to start what is measured: another command, ranks on hosts, ranks here; the others soak."""


@pytest.mark.parametrize("name", NAMES)
def test_quick_form(name: str, tmp_path: Path) -> None:
    """As JSON, and one of them as a terminal shows it: the same run has both checked."""
    saved = tmp_path / "result.json"
    marked = Marked()
    shown = [] if name == ON_A_TERMINAL else ["--json"]
    done = marked.run([LOCKSTEP, "bench", name, "--quick", *shown, "--save", str(saved)], tmp_path, SECONDS)
    assert done.code == 0, done.text
    assert marked.survivors() == []
    result = decode(saved.read_bytes())
    expected = saved.read_text() if shown else as_tables(result)
    assert done.out == expected, "standard output is the result and nothing else"
    check_progress(done, name)
    check_result(result, name)
    check_documentation(result)
    if name in FACTS:
        FACTS[name](result)


def check_result(result: Result, name: str) -> None:
    """Everything is there, and each ratio is that of its two sides; how long anything took is not asked."""
    assert (result.benchmark, result.quick) == (name, True)
    assert dict(result.settings) == {option.name: option.quick for option in BENCHMARKS.get(name).options}
    assert set(result.environment) >= {"lockstep", "torch", "python", "cpus"}
    assert result.tables
    assert result.figures
    for table in result.tables:
        check_table(table)
    for figure in result.figures:
        check_figure(figure)
    assert len({figure.what for figure in result.figures}) == len(result.figures)


def check_table(table: Table) -> None:
    assert table.rows, table.name
    for row in table.rows:
        assert any(isinstance(cell, Quantity) for cell in row.values()), f"{table.name}: a row without a number: {row}"


def check_figure(figure: Figure) -> None:
    """The ratio lies between the least and the most that pairs of its sides' samples give: no side is the other's."""
    assert figure.reached is None, "a quick run judges no goal"
    assert figure.ours.name != figure.theirs.name
    assert figure.ours.unit == figure.theirs.unit
    over, under = (figure.theirs, figure.ours) if figure.goal.at_least else (figure.ours, figure.theirs)
    above, below = (side.measured.samples or (side.measured.value,) for side in (over, under))
    assert min(above) / max(below) <= figure.ratio.value * (1 + ROUNDING), figure.what
    assert max(above) / min(below) >= figure.ratio.value * (1 - ROUNDING), figure.what


def check_progress(done: Done, name: str) -> None:
    """Standard error holds the phases and how long all took, and no line of a library's."""
    *phases, last = done.err.splitlines()
    assert phases
    assert [line for line in phases if not re.fullmatch(rf"{name}: .+ \.\.\.", line)] == []
    assert re.fullmatch(rf"{name}: took .+", last)


def check_documentation(result: Result) -> None:
    """Every marked block of this benchmark can be made from its result."""
    for page in PAGES:
        text = page.read_text()
        if any(block.benchmark == result.benchmark for block in blocks(text)):
            assert fill(text, {result.benchmark: result}) != text


def cells(result: Result, table: str, column: str) -> list[float]:
    """Return the numbers of a column."""
    rows = next(one.rows for one in result.tables if one.name == table)
    return [cell.value for row in rows if isinstance(cell := row.get(column), Quantity)]


def check_syncbn(result: Result) -> None:
    """Bytes and exchanges are facts."""
    ours, by_hand, activations = (cells(result, "needs", name) for name in ("ours", "by hand", "two activations"))
    assert all(mine <= 0.45 * other for mine, other in zip(ours, by_hand, strict=True))
    assert all(mine <= needed + 2048 for mine, needed in zip(ours, activations, strict=True))
    assert {*cells(result, "needs", "ours: exchanges"), *cells(result, "needs", "by hand: exchanges")} == {2}


def check_data(result: Result) -> None:
    """Open files are facts."""
    big, as_list, ours = cells(result, "sides", "files")
    assert max(big, ours) < 50
    assert as_list > 200


FACTS: dict[str, Callable[[Result], None]] = {"syncbn": check_syncbn, "data": check_data}


def as_tables(result: Result) -> str:
    """Return what a terminal gets."""
    text = io.StringIO()
    show(result, Console(file=text, width=WIDTH))
    return text.getvalue()


def failing(name: str, fault: str, cwd: Path) -> str:
    """Run a benchmark with a fault in what it starts; return the one message."""
    marked = Marked({"PYTHONPATH": FAULTS, "LOCKSTEP_TEST_FAULT": fault})
    done = marked.run([LOCKSTEP, "bench", name, "--quick", "--json"], cwd, SECONDS)
    assert done.code == 1, done.text
    assert done.out == ""
    assert marked.survivors() == []
    assert list(cwd.iterdir()) == []
    message = re.sub(rf"^{name}: .+ \.\.\.\n", "", done.err, flags=re.MULTILINE)
    assert message.startswith("lockstep: ")
    # what measures a lane tells in one line what it raised; ranks leave their traceback
    assert message.count("Traceback") == (name != "fit"), message
    cause = message.partition("\nhelp: lockstep docs ")[0].rstrip()
    assert cause.endswith("ValueError: injected by a test"), message
    return message


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in ALWAYS_FAILED else [pytest.mark.soak]) for name in NAMES]
)
def test_what_a_benchmark_starts_fails(name: str, tmp_path: Path) -> None:
    failing(name, "torch:set_num_threads", tmp_path)


def test_a_rank_fails_while_the_others_wait_for_it(tmp_path: Path) -> None:
    message = failing(WITH_GROUPS, "torch.distributed:new_group rank 1", tmp_path)
    assert message.startswith("lockstep: rank 1 of 2 failed:\n")
