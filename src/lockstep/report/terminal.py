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
DID_NOT_RUN = "did not run"
BESIDE_PARTS = ("unaccounted", "sent", "exchange hidden", "slowest rank")
LEAVE_OUT = ("exchange hidden", "sent", "unaccounted", "slowest rank", "data", "wait", "optimizer")
"""Columns of where a step goes, in the order in which they are left out where there is no room."""


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
        yield step_table(ran, width)
    if per_rank:
        yield rank_table(ran)
    yield from _named("why", ((row.name, row.why) for row in ran))
    yield from _named("parity", ((row.name, row.parity) for row in ran if row.parity not in (SAME, FIRST)))
    yield from _named("note", ((row.name, note) for row in ran for note in row.notes))
    not_run = ((row.name, row.why_not) for row in comparison.rows if not row.repeats)
    yield from _named(DID_NOT_RUN, shared(not_run, len(comparison.rows)))


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
        cells = [_text(column, row) for column in chosen] if row.repeats else [DID_NOT_RUN]
        made.add_row(escape(row.name), *(escape(cell) for cell in cells))
    if coupled := sorted({row.depends_on_workers for row in rows if row.depends_on_workers}):
        made.caption = f"* {', '.join(coupled)}: loss, accuracy and digest depend on the number of workers"
    return made


def fitting(every: Sequence[Column], rows: Sequence[Row], width: int) -> list[Column]:
    """Return the columns that fit into a width, in their order; one at least."""
    chosen = [column for column in every if column.order is not None]
    while len(chosen) > 1 and _room(_texts(chosen, rows)) > width:
        chosen.remove(max(chosen, key=lambda column: column.order or 0))
    return chosen


def step_table(rows: Sequence[Row], width: int) -> Table:
    """Return where a mean step goes: shares of it by part, and more as far as there is room."""
    made = _plain("where a step goes")
    cells: dict[str, list[str]] = {heading: [] for heading in (*PARTS, *BESIDE_PARTS)}
    for row in rows:
        whole = sum(row.parts.values())
        for part in PARTS:
            cells[part].append(share(row.parts[part] / whole) if whole else NONE)
        sent = max((rank.sent for rank in row.ranks), default=0.0)
        beside = (share(row.unaccounted), size(sent) if sent else NONE, share(row.overlap), slowest(row))
        for heading, text in zip(BESIDE_PARTS, beside, strict=True):
            cells[heading].append(text)
    names = ["strategy", *(row.name for row in rows)]
    for heading in LEAVE_OUT:
        if _room([names, *([key, *own] for key, own in cells.items())]) <= width:
            break
        del cells[heading]
    made.add_column("strategy", no_wrap=True)
    for heading in cells:
        made.add_column(heading, justify="right")
    for place, row in enumerate(rows):
        made.add_row(escape(row.name), *(column[place] for column in cells.values()))
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


def _texts(chosen: Sequence[Column], rows: Sequence[Row]) -> list[list[str]]:
    """Return what stands in each column; what did not run says so in the first."""
    ran = [row for row in rows if row.repeats]
    texts = [
        [*(column.narrow or column.heading).splitlines(), *(_text(column, row) for row in ran)] for column in chosen
    ]
    if len(ran) < len(rows):
        texts[0].append(DID_NOT_RUN)
    return texts


def _room(columns: Iterable[Sequence[str]]) -> int:
    """Return how wide columns are together."""
    return sum(max(map(len, texts)) + GAP for texts in columns)
