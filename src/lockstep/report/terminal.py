"""A comparison for a terminal: what to use, the table, where a step goes, why, and what to know.

Columns that do not fit the terminal are left out, the least telling first; the page has them all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from lockstep.report.columns import Column, columns, rank_columns, slowest
from lockstep.report.parity import FIRST, SAME
from lockstep.report.rows import Row
from lockstep.report.units import NONE, share, size
from lockstep.report.wording import shared
from lockstep.train.schema.scalars import PARTS

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from lockstep.report.compare import Comparison

GAP = 2
"""Blanks between columns."""


def show(comparison: Comparison, screen: Console, *, per_rank: bool = False) -> None:
    """Print a comparison."""
    for line in lines(comparison, screen.width, per_rank=per_rank):
        screen.print(line)


def lines(comparison: Comparison, width: int, *, per_rank: bool = False) -> Iterator[RenderableType]:
    """Yield what to print, from the top."""
    for sentence in comparison.recommendation:
        yield Text(sentence, style="bold")
    yield table(comparison, width)
    ran = [row for row in comparison.rows if row.repeats]
    if any(row.parts for row in ran):
        yield step_table(ran)
    if per_rank:
        yield rank_table(ran)
    yield from _named("why", ((row.name, row.why) for row in ran))
    yield from _named("parity", ((row.name, row.parity) for row in ran if row.parity not in (SAME, FIRST)))
    yield from _named("note", ((row.name, note) for row in ran for note in row.notes))
    not_run = ((row.name, row.why_not) for row in comparison.rows if not row.repeats)
    yield from _named("did not run", shared(not_run, len(comparison.rows)))


def table(comparison: Comparison, width: int) -> Table:
    """Return the table of a comparison, as wide as there is room."""
    rows = comparison.rows
    made = _plain(comparison.title)
    made.add_column("strategy", no_wrap=True)
    names = max(len(name) for name in ("strategy", *(row.name for row in rows)))
    chosen = fitting(columns(rows), rows, width - names - GAP - 1)
    for column in chosen:
        made.add_column(column.narrow or column.heading, justify="right" if column.number else "left", no_wrap=True)
    if not chosen:
        made.add_column("")
    for row in rows:
        cells = [_text(column, row) for column in chosen] if row.repeats else ["did not run"]
        made.add_row(escape(row.name), *(escape(cell) for cell in cells))
    if coupled := sorted({row.depends_on_workers for row in rows if row.depends_on_workers}):
        made.caption = f"* {', '.join(coupled)}: loss, accuracy and digest depend on the number of workers"
    return made


def fitting(every: Sequence[Column], rows: Sequence[Row], width: int) -> list[Column]:
    """Return the columns that fit into a width, in their order; one at least."""
    chosen = [column for column in every if column.order is not None]
    while len(chosen) > 1 and sum(_width(column, rows) + GAP for column in chosen) > width:
        chosen.remove(max(chosen, key=lambda column: column.order or 0))
    return chosen


def step_table(rows: Sequence[Row]) -> Table:
    """Return where a mean step goes: shares of it by part."""
    made = _plain("where a step goes")
    made.add_column("strategy", no_wrap=True)
    for heading in (*PARTS, "unaccounted", "sent", "exchange hidden", "slowest rank"):
        made.add_column(heading, justify="right")
    for row in rows:
        whole = sum(row.parts.values())
        cells = [share(row.parts[part] / whole) if whole else NONE for part in PARTS]
        sent = max((rank.sent for rank in row.ranks), default=0.0)
        cells += [share(row.unaccounted), size(sent) if sent else NONE, share(row.overlap)]
        made.add_row(escape(row.name), *cells, slowest(row))
    return made


def rank_table(rows: Sequence[Row]) -> Table:
    """Return a line for each rank of each way."""
    shown = [column for column in rank_columns(rows) if column.terminal]
    made = _plain("by rank")
    made.add_column("strategy", no_wrap=True)
    for column in shown:
        made.add_column(column.heading, justify="right" if column.number else "left")
    for row in rows:
        for rank in row.ranks:
            made.add_row(escape(row.name), *(escape(column.text(row, rank)) for column in shown))
    return made


def _plain(title: str) -> Table:
    wide = len(title) + GAP  # a narrow table would break its title over lines
    return Table(
        title=escape(title), title_justify="left", title_style="bold", box=SIMPLE, padding=(0, 1, 0, 0), min_width=wide
    )


def _named(what: str, entries: Iterable[tuple[str, str]]) -> Iterator[Text]:
    for name, text in entries:
        if text:
            yield Text.assemble((f"{what} ", "dim"), (f"{name}: ", "bold"), text)


def _text(column: Column, row: Row) -> str:
    return (column.brief or column.text)(row)


def _width(column: Column, rows: Sequence[Row]) -> int:
    heading = (column.narrow or column.heading).splitlines()
    return max(len(line) for line in [*heading, *(_text(column, row) for row in rows if row.repeats)])
