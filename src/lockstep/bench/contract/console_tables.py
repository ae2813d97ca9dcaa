"""A result on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table as RichTable

from lockstep.bench.contract.cells import HEADINGS, cell_text, figure_texts, heading, headline

if TYPE_CHECKING:
    from rich.console import Console

    from lockstep.bench.contract.measurements import Result, Table


def show(result: Result, console: Console) -> None:
    """Print the headline, every table, the figures and the notes."""
    console.print(escape(headline(result)), style="yellow" if result.quick else "bold", highlight=False)
    for table in result.tables:
        console.print(_table(table))
    if result.figures:
        console.print(_figures(result))
    for note in result.notes:
        console.print(escape(note), highlight=False)


def _table(table: Table) -> RichTable:
    shown = RichTable(title=escape(table.title), title_justify="left", title_style="bold")
    for column in table.columns:
        shown.add_column(escape(heading(column)), justify="left" if column.unit is None else "right")
    for row in table.rows:
        shown.add_row(*(escape(cell_text(column, row)) for column in table.columns))
    return shown


def _figures(result: Result) -> RichTable:
    shown = RichTable(title="ratios and their goals", title_justify="left", title_style="bold")
    for name in HEADINGS:
        shown.add_column(name, justify="right" if name in ("ratio", "goal") else "left")
    for figure in result.figures:
        style = "red" if figure.reached is False else None
        shown.add_row(*map(escape, figure_texts(figure)), style=style)
    return shown
