"""A comparison below a cell: its table as HTML, and the whole page in a frame of its own.

Text of a run is escaped wherever it is shown. The frame has no origin (`sandbox`): the page cannot reach the notebook,
and the page's own policy forbids every request.
"""

from __future__ import annotations

import html
import io
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockstep.report.compare import Comparison

TEXT, TABLE = "comparison.txt", "comparison-table.html"
HEIGHT = 640
WIDTH = 110
"""Characters of a line of text."""


def write_table(comparison: Comparison, folder: Path) -> None:
    """Write a comparison as text and as an HTML table, for the kernel."""
    from rich.console import Console

    from lockstep.report.terminal import show

    text = io.StringIO()
    show(comparison, Console(file=text, width=WIDTH, color_system=None, force_terminal=False))
    (folder / TEXT).write_text(text.getvalue(), encoding="utf-8")
    (folder / TABLE).write_text(table(comparison), encoding="utf-8")


def table(comparison: Comparison) -> str:
    """Return what to use, and the table with the columns that a terminal would have; the page has all."""
    from lockstep.report.columns import columns
    from lockstep.report.terminal import fitting

    shown = fitting(columns(comparison.rows), comparison.rows, WIDTH - max(len(row.name) for row in comparison.rows))
    sides = ["right" if column.number else "left" for column in shown]
    heads = [_cell("th", "strategy", "left")]
    heads += [_cell("th", column.heading, side) for column, side in zip(shown, sides, strict=True)]
    lines = [f"<tr>{''.join(heads)}</tr>"]
    for row in comparison.rows:
        cells = [_cell("td", row.name, "left", nowrap=True)]
        if row.repeats:
            texts = [(column.brief or column.text)(row) for column in shown]
            cells += [_cell("td", text, side, nowrap=True) for text, side in zip(texts, sides, strict=True)]
        else:
            why = html.escape(f"did not run: {row.why_not}")
            cells.append(f'<td colspan="{max(1, len(shown))}" style="text-align: left">{why}</td>')
        lines.append(f"<tr>{''.join(cells)}</tr>")
    said = "".join(f"<p><b>{html.escape(sentence)}</b></p>" for sentence in comparison.recommendation)
    title = f'<caption style="text-align: left">{html.escape(comparison.title)}</caption>'
    return f'{said}<div style="overflow-x: auto"><table>{title}{"".join(lines)}</table></div>'


def framed(private: Path, page: Path) -> str:
    """Return the table, and the page in a frame."""
    content = html.escape(page.read_text(encoding="utf-8"), quote=True)
    style = f"width: 100%; height: {HEIGHT}px; border: 1px solid #8888; resize: vertical"
    return (private / TABLE).read_text(
        encoding="utf-8"
    ) + f'<iframe title="report" sandbox="allow-scripts" srcdoc="{content}" style="{style}"></iframe>'


def _cell(kind: str, text: str, side: str, *, nowrap: bool = False) -> str:
    style = f"text-align: {side}{'; white-space: nowrap' if nowrap else ''}"
    return f'<{kind} style="{style}">{html.escape(text)}</{kind}>'
