"""A chart as a picture of its own, for a page that is not a report."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from markupsafe import Markup

from lockstep.report import svg, theme

if TYPE_CHECKING:
    from lockstep.report.charts.frame import Chart

MARGIN, HEAD, LEGEND = 16.0, 50.0, 22.0
BOX = re.compile(r'<svg xmlns="[^"]+" viewBox="0 0 ([\d.]+) ([\d.]+)"')


def alone(chart: Chart) -> str:
    """Return the wide picture with title, legend and colours; it follows the reader's light or dark setting."""
    box = BOX.match(chart.wide)
    assert box is not None, "every chart is an svg with a viewBox"
    width, height = float(box[1]), float(box[2])
    keys, x = [], MARGIN
    for key in chart.legend:
        keys.append(svg.element("rect", x=x, y=HEAD - 8, width=12.0, height=12.0, rx=2, class_=f"fill {key.colour}"))
        keys.append(svg.text(x + 18, HEAD + 2, key.label, "small"))
        x += 42 + 13 * svg.LETTER * len(key.label)
    top = HEAD + (LEGEND if keys else 0)
    # see [Note: safe markup]: the picture is markup of ours already. Markup.replace would escape what is put in.
    place = f'<svg x="{MARGIN:g}" y="{top:g}" width="{width:g}" height="{height:g}" '
    inner = Markup(str.replace(chart.wide, "<svg ", place, 1))  # noqa: S704
    ground = svg.element("rect", width=width + 2 * MARGIN, height=height + top + MARGIN, rx=8, fill="var(--card)")
    heading = svg.element("g", svg.text(MARGIN, 28, chart.title, "strong"), style="font-size:16px")
    parts = (svg.element("style", Markup(theme.alone())), ground, heading, *keys, inner)  # noqa: S704
    return svg.picture(width + 2 * MARGIN, height + top + MARGIN, f"{chart.title}. {chart.words}", *parts) + "\n"
