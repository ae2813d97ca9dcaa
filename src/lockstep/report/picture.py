"""The comparison as a picture: a bar per way, its spread as a whisker; light and dark by the reader's setting."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockstep.report.rows import Row

WIDTH, LEFT, RIGHT, TOP, BAR, GAP = 760, 190, 150, 56, 26, 16
STYLE = """
text { font: 14px system-ui, sans-serif; fill: #1f2430 } .title { font-weight: 600; font-size: 16px }
.quiet { fill: #5b6270 } .back { fill: #ffffff } .bar { fill: #3b6fd4 } .base { fill: #9aa4b5 }
.whisker { stroke: #1f2430; stroke-width: 1.5 }
@media (prefers-color-scheme: dark) { text { fill: #e8eaf0 } .quiet { fill: #a3abba } .back { fill: #14171f }
.bar { fill: #6f9bf0 } .base { fill: #6b7484 } .whisker { stroke: #e8eaf0 } }
"""


def draw(title: str, rows: Sequence[Row]) -> str:
    """Return an SVG of the training times; a way that did not run has its reason in place of a bar."""
    longest = max((row.seconds_spread[1] for row in rows if row.seconds_spread), default=1.0)
    height = TOP + len(rows) * (BAR + GAP) + 34
    scale = (WIDTH - LEFT - RIGHT) / longest
    parts = [_text(16, 30, title, "title")]
    for place, row in enumerate(rows):
        parts += _bar(row, TOP + place * (BAR + GAP), scale)
    parts.append(_text(LEFT, height - 14, "seconds of training; the line is fastest to slowest repeat", "quiet"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(title, quote=True)}"><style>{STYLE}</style>'
        f'<rect class="back" width="{WIDTH}" height="{height}"/>{"".join(parts)}</svg>\n'
    )


def _bar(row: Row, top: float, scale: float) -> list[str]:
    middle = top + BAR / 2
    label = _text(LEFT - 10, middle + 5, f"{row.name} ({row.workers})", "", anchor="end")
    if row.seconds is None or row.seconds_spread is None:
        return [label, _text(LEFT, middle + 5, row.why_not.splitlines()[0][:60], "quiet")]
    low, high = (LEFT + seconds * scale for seconds in row.seconds_spread)
    kind = "base" if row.name.startswith("single") else "bar"
    faster = f", {row.speed_up:.2f} x" if row.speed_up else ""
    return [
        label,
        f'<rect class="{kind}" x="{LEFT}" y="{top}" width="{row.seconds * scale:.1f}" height="{BAR}" rx="3"/>',
        f'<line class="whisker" x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}"/>',
        _text(high + 10, middle + 5, f"{row.seconds:.2f} s{faster}", ""),
    ]


def _text(x: float, y: float, text: str, kind: str, *, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'
