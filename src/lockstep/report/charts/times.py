"""How long each way took: a bar, and its spread over the repeats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from markupsafe import Markup

from lockstep.report import svg, theme
from lockstep.report.charts.frame import NARROW, WIDE, Chart, RowFrame, means, series
from lockstep.report.compare import Comparison
from lockstep.report.rows import Row
from lockstep.report.units import digits, duration, time_unit, times

BAR = 26.0


def charts(comparison: Comparison) -> Iterator[Chart]:
    """Yield the chart of training times; a way that did not run has its reason in place of a bar."""
    rows = comparison.rows
    if not any(row.seconds for row in rows):
        return
    yield Chart(
        key="times",
        title="Training time",
        help="The bar is the median of the repeats; the line on it, the spread, reaches from the fastest to the "
        "slowest of several. Shorter is better; the factor is the speed-up of a step over single.",
        words=words(rows),
        wide=draw(rows, WIDE),
        narrow=draw(rows, NARROW),
        headings=("strategy", "median", "fastest", "slowest", "repeats", "speed-up"),
        lines=tuple(
            (row.name, duration(row.seconds), *_ends(row), str(row.repeats), times(row.speed_up))
            if row.seconds is not None
            else (row.name, row.why_not, "", "", "", "")
            for row in rows
        ),
    )


def _ends(row: Row) -> tuple[str, str]:
    low, high = row.seconds_spread or (None, None)
    return duration(low), duration(high)


def words(rows: Sequence[Row]) -> str:
    """Say what the bars show."""
    ran = [f"{row.name} {duration(row.seconds)}" for row in rows if row.seconds is not None]
    failed = [f"{row.name} did not run" for row in rows if row.seconds is None]
    return f"Bars of training time: {', '.join(ran + failed)}."


def alone(title: str, rows: Sequence[Row]) -> Markup:
    """Return the bars as a picture of their own, for a README or a slide."""
    bars = _bars(rows, 760)
    frame = _frame(rows, 760)
    ground = svg.element("rect", width=792.0, height=frame.height + 62, rx=8, fill="var(--card)")
    heading = svg.element("g", svg.text(16, 30, title, "strong"), style="font-size:16px")
    inside = svg.element("g", bars, transform="translate(16 50)")
    style = svg.element("style", theme.alone())
    return svg.picture(792, frame.height + 62, f"{title}. {words(rows)}", style, ground, heading, inside) + "\n"


def draw(rows: Sequence[Row], width: float) -> Markup:
    """Return the bars for a page of this width."""
    return svg.picture(width, _frame(rows, width).height, words(rows), _bars(rows, width))


def _frame(rows: Sequence[Row], width: float) -> RowFrame:
    longest = max((_longest(row) for row in rows if row.seconds is not None), default=1.0)
    labels = [(row.name, means(row), BAR) for row in rows]
    return RowFrame(width, labels, right=118 if width <= NARROW else 150, largest=longest)


def _longest(row: Row) -> float:
    return row.seconds_spread[1] if row.seconds_spread else row.seconds or 0.0


def _bars(rows: Sequence[Row], width: float) -> Markup:
    frame = _frame(rows, width)
    unit = time_unit(frame.largest)
    colours = series(rows)
    parts = [frame.axis(unit[0], f"training time, {unit[1]}")]
    for place, row in enumerate(rows):
        parts += [frame.label(place), _bar(frame, place, row, colours[row.name], unit)]
    return svg.together(parts)


def _bar(frame: RowFrame, place: int, row: Row, colour: str, unit: tuple[float, str]) -> Markup:
    top = frame.tops[place]
    middle = top + BAR / 2
    if row.seconds is None:
        room = frame.width - frame.left - 12
        reason = svg.shorten(row.why_not, room)
        return svg.text(frame.left + 8, middle + 4.5, reason, "warn")
    over = "{} to {} over {} repeats".format(*_ends(row), row.repeats) if row.seconds_spread else "one repeat"
    tip = f"{row.name}: {duration(row.seconds)}, {over}"
    parts = [svg.bar(frame.left, top, frame.length(row.seconds), BAR, colour, tip)]
    if row.seconds_spread:
        low, high = (frame.left + frame.length(end) for end in row.seconds_spread)
        parts.append(svg.whisker(low, high, middle))
    end = frame.left + frame.length(_longest(row)) + 10
    factor = svg.element("tspan", times(row.speed_up), class_="quiet light", dx=8) if row.speed_up else ""
    inside = f"{digits(row.seconds / unit[0])} {unit[1]}"
    parts.append(svg.element("text", inside, factor, x=end, y=middle + 4.5, class_="strong"))
    return svg.together(parts)
