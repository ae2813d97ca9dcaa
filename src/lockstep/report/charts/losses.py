"""The losses of the ways over each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from lockstep.report import svg
from lockstep.report.charts.frame import DASHES, NARROW, WIDE, Chart, Key, Plane, series
from lockstep.report.compare import Comparison

HEIGHT = 340.0
LARGEST = 1e300
"""A loss beyond it is not drawn: the axis could not be divided any more."""
POINTS = 240
"""More than a screen shows is not drawn."""
TABLE = 8
STRIPE = 9.0


def charts(comparison: Comparison) -> Iterator[Chart]:
    """Yield the chart of losses: the first finished run of each row."""
    rows, runs = comparison.rows, comparison.runs
    curves = {row.name: runs[row.name][0].losses for row in rows if runs.get(row.name)}
    curves = {name: losses for name, losses in curves.items() if any(map(_drawn, losses))}
    if not curves:
        return
    colours = series(rows)
    last = max(len(losses) for losses in curves.values()) - 1
    shown = spread(last + 1)
    yield Chart(
        key="losses",
        title="Loss",
        help="The loss of each step over all ranks. Ways with the same loss in every step share one line, striped in "
        "their colours.",
        words=_words(curves),
        wide=_draw(curves, colours, WIDE),
        narrow=_draw(curves, colours, NARROW),
        legend=tuple(curve_key(name, colours[name], style) for name, style in styles(curves).items()),
        headings=("strategy", *(f"step {step}" for step in shown)),
        lines=tuple(
            (name, *(f"{losses[step]:.6g}" if step < len(losses) else "" for step in shown))
            for name, losses in curves.items()
        ),
    )


@dataclass(frozen=True)
class Style:
    """How a curve is drawn."""

    width: float
    dash: str | None = None
    shift: float | None = None


def styles(curves: Mapping[str, Sequence[float]]) -> dict[str, Style]:
    """Return how to draw the curves, in the order to draw them.

    Equal ones become stripes of one line; the others are thinner, lie on top and differ in their dashes.
    """
    equal: dict[tuple[str, ...], list[str]] = {}
    for name, losses in curves.items():
        equal.setdefault(_told(losses), []).append(name)
    striped: dict[str, Style] = {}
    for names in (names for names in equal.values() if len(names) > 1):
        for place, name in enumerate(names):
            striped[name] = Style(4.0, f"{STRIPE} {STRIPE * (len(names) - 1)}", -STRIPE * place)
    alone = [name for name in curves if name not in striped]
    first = 1 if striped else 0  # a whole line would hide the stripes
    return striped | {name: Style(2.0, DASHES[place % len(DASHES)]) for place, name in enumerate(alone, start=first)}


def _told(losses: Sequence[float]) -> tuple[str, ...]:
    """Return losses to the digits that a 32-bit number has; the mean over ranks rounds below them."""
    return tuple(f"{loss:.9g}" for loss in losses)


def curve_key(name: str, colour: str, style: Style) -> Key:
    """Return the entry of a legend for a curve."""
    dash = None if style.shift is not None else style.dash  # a stripe is not told by its dashes
    line = svg.element(
        "path", d="M0 7H30", class_=f"line flat {colour}", stroke_width=style.width, stroke_dasharray=dash
    )
    return Key(colour=colour, label=name, picture=svg.key(line))


def spread(count: int, few: int = TABLE) -> list[int]:
    """Return the places of a few of so many values, first and last among them."""
    return sorted({round(place * (count - 1) / (few - 1)) for place in range(few)})


def _words(curves: Mapping[str, Sequence[float]]) -> str:
    first = _told(next(iter(curves.values())))
    same = [name for name, losses in curves.items() if _told(losses) == first]
    told = [f"{name} ends at {losses[-1]:.4f}" for name, losses in curves.items()]
    equal = f" {', '.join(same)} have the same loss in every step." if len(same) > 1 else ""
    return f"Lines of loss by step: {', '.join(told)}.{equal}"


def thin(losses: Sequence[float]) -> list[tuple[float, float]]:
    """Return at most POINTS points, first and last among them; steps whose loss cannot be drawn are left out."""
    last = len(losses) - 1
    steps = range(len(losses)) if last < POINTS else {round(i * last / (POINTS - 1)) for i in range(POINTS)}
    return [(float(step), losses[step]) for step in sorted(steps) if _drawn(losses[step])]


def _drawn(loss: float) -> bool:
    return abs(loss) < LARGEST  # also False for NaN


def _draw(curves: Mapping[str, Sequence[float]], colours: Mapping[str, str], width: float) -> Markup:
    lines = {name: thin(losses) for name, losses in curves.items()}
    values = [value for points in lines.values() for _, value in points]
    low, high = min(values), max(values)
    room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    last = float(max(len(losses) for losses in curves.values()) - 1)
    plane = Plane(width=width, height=HEIGHT, across=(0.0, max(last, 1.0)), up=(low - room, high + room), left=54)
    parts = [plane.axes([tick for tick in svg.ticks(max(last, 1.0), 6) if tick == int(tick)], "step", "loss")]
    for name, style in styles(curves).items():
        parts.append(plane.line(lines[name], f"line flat {colours[name]}", style.width, style.dash, style.shift))
    return svg.picture(width, HEIGHT, _words(curves), *parts)
