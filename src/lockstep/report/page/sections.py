"""The parts of the page. Everything that comes from a run goes through `escape`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from lockstep.report.charts.frame import series
from lockstep.report.columns import columns, rank_columns
from lockstep.report.units import plural
from lockstep.report.wording import COMMAND, groups
from lockstep.version import __version__

if TYPE_CHECKING:
    from lockstep.report.charts.frame import Chart
    from lockstep.report.compare import Comparison
    from lockstep.report.rows import Row


def header(comparison: Comparison) -> str:
    """Return the title and the switch of theme."""
    return (
        '<header><div><p class="eyebrow">Lockstep comparison</p>'
        f"<h1>{escape(comparison.title)}</h1></div>"
        '<button type="button" id="theme" aria-pressed="false" hidden>Dark theme</button></header>'
    )


def navigation(links: Iterable[tuple[str, str]]) -> str:
    """Return the links to the sections."""
    items = "".join(f'<li><a href="#{key}">{escape(label)}</a></li>' for key, label in links)
    return f'<nav aria-label="Sections"><ul>{items}</ul></nav>'


def recommendation(comparison: Comparison) -> str:
    """Return what to use; the first sentence is the answer."""
    if not comparison.recommendation:
        return ""
    first, *rest = comparison.recommendation
    more = f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in rest)}</ul>" if rest else ""
    return _section("recommendation", "Recommendation", f"<p>{escape(first)}</p>{more}", kind="lead")


def chart(drawn: Chart) -> str:
    """Return a chart with its legend, and its numbers as a table that unfolds."""
    legend = "".join(f"<li>{key.picture or _swatch(key.colour)}{escape(key.label)}</li>" for key in drawn.legend)
    head = "".join(f'<th scope="col"{_n(place > 0)}>{escape(text)}</th>' for place, text in enumerate(drawn.headings))
    lines = [(line[0], "".join(f'<td class="n">{escape(cell)}</td>' for cell in line[1:])) for line in drawn.lines]
    body = "".join(_cells(first, cells) for first, cells in lines)
    caption = f"Numbers of the chart {drawn.title!r}".replace("'", "“", 1).replace("'", "”", 1)
    content = (
        f'<p class="help">{escape(drawn.help)}</p>'
        + (f'<ul class="legend" aria-label="Colours">{legend}</ul>' if legend else "")
        + f'<figure><div class="wide">{drawn.wide}</div><div class="narrow">{drawn.narrow}</div></figure>'
        + f"<details><summary>Numbers of this chart</summary>{_scroll(caption, _table(caption, head, body))}</details>"
    )
    return _section(drawn.key, drawn.title, content, kind="half" if drawn.half else "")


def why(comparison: Comparison) -> str:
    """Return a sentence for each row: where its time goes and what to try, or why it did not run."""
    colours = series(comparison.rows)
    items = "".join(
        f"<li><h3>{_swatch(colours[row.name])}{escape(row.name)}</h3><div>{_reason(row)}</div></li>"
        for row in comparison.rows
    )
    return _section("why", "Why", f'<ul class="why">{items}</ul>')


def _reason(row: Row) -> str:
    parts = []
    if row.why:
        parts.append(f"<p>{escape(row.why)}</p>")
    if row.why_not:
        ended = "Did not run" if not row.repeats else "A repeat failed"
        parts.append(f'<p class="warned">{ended}: {escape(row.why_not)}</p>')
    parts += [f'<p class="note">{escape(note)}</p>' for note in row.notes]
    return "".join(parts) or "<p>Nothing stands out.</p>"


def table(comparison: Comparison) -> str:
    """Return the full table; a row unfolds into its ranks."""
    shown = columns(comparison.rows)
    head = '<th scope="col">strategy</th>' + "".join(
        f'<th scope="col"{_n(column.number)}>{escape(column.heading)}</th>' for column in shown
    )
    body = []
    for place, row in enumerate(comparison.rows):
        if not row.repeats:
            reason = escape(row.why_not)
            cells = f'<td class="warned" colspan="{len(shown)}">{reason}</td>'
        else:
            cells = "".join(
                f'<td class="{"n" if column.number else "wrap" if column.heading == "parity" else ""}">'
                f"{escape(column.text(row))}</td>"
                for column in shown
            )
        name = escape(row.name)
        if row.ranks:
            name = (
                f'<button type="button" class="more" aria-expanded="true" aria-controls="ranks-{place}" disabled>'
                f"{name}</button>"
            )
        body.append(f'<tr><th scope="row">{name}</th>{cells}</tr>')
        if row.ranks:
            inner = _scroll(f"{row.name} by rank", _ranks(row))
            body.append(f'<tr class="ranks" id="ranks-{place}"><td colspan="{len(shown) + 1}">{inner}</td></tr>')
    starred = sorted({row.depends_on_workers for row in comparison.rows if row.depends_on_workers})
    star = f'<p class="help">* {escape(", ".join(starred))}: depends on the number of workers.</p>' if starred else ""
    caption = f"{comparison.title}: every way and its ranks; in brackets the fastest and the slowest repeat"
    return _section("table", "Table", _scroll("All figures", _table(caption, head, "".join(body))) + star)


def _ranks(row: Row) -> str:
    shown = rank_columns([row])
    head = "".join(f'<th scope="col"{_n(column.number)}>{escape(column.heading)}</th>' for column in shown)
    body = []
    for rank in row.ranks:
        first, *rest = ((column.text(row, rank), column.number) for column in shown)
        body.append(_cells(first[0], "".join(f"<td{_n(number)}>{escape(cell)}</td>" for cell, number in rest)))
    return _table(f"{row.name} by rank; a mean step", head, "".join(body))


def settings(comparison: Comparison) -> str:
    """Return what is needed to repeat the comparison."""
    command = comparison.settings.get(COMMAND)
    line = f'<pre tabindex="0" aria-label="Command line">{escape(str(command))}</pre>' if command else ""
    content = "".join(f"<div><h3>{heading}</h3>{_list(lines)}</div>" for heading, lines in groups(comparison).items())
    return _section("repeat", "To repeat it", line + f'<div class="groups">{content}</div>')


def _list(lines: Iterable[tuple[str, str]]) -> str:
    return f"<dl>{''.join(f'<dt>{escape(name)}</dt><dd>{escape(text)}</dd>' for name, text in lines)}</dl>"


def footer(comparison: Comparison) -> str:
    """Return when and by what the page was made."""
    made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    ran = sum(len(runs) for runs in comparison.runs.values())
    return f"<footer>Made by lockstep {escape(__version__)} on {made} from {plural(ran, 'run')}.</footer>"


def _section(key: str, title: str, content: str, kind: str = "") -> str:
    return (
        f'<section id="{key}" class="card {kind}" aria-labelledby="{key}-title">'
        f'<h2 id="{key}-title">{escape(title)}</h2>{content}</section>'
    )


def _cells(first: str, cells: str) -> str:
    return f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>'


def _swatch(colour: str) -> str:
    return f'<span class="swatch {escape(colour)}"></span>'


def _table(caption: str, head: str, body: str) -> str:
    return f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _scroll(label: str, content: str) -> str:
    """Return a box that scrolls by itself, also from the keyboard."""
    return f'<div class="scroll" role="region" aria-label="{escape(label)}" tabindex="0">{content}</div>'


def _n(yes: bool) -> str:
    return ' class="n"' if yes else ""
