"""What charts have in common: their value, their rows, their plane."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from lockstep.registry import BASELINE
from lockstep.report import svg, theme
from lockstep.report.rows import Row
from lockstep.report.units import plural

WIDE, HALF, NARROW = 1040.0, 500.0, 358.0
"""Widths that a chart is drawn for: all of a laptop's page, half of it, a phone's. Text has the same size in each."""
DASHES = (None, "7 4", "2 4", "9 3 2 3", "4 3", "12 4", "1 3", "6 2 2 2")
"""Of lines, so that they are told apart without their colours."""
BELOW = 46.0
"""Room for an axis and its title."""


@dataclass(frozen=True, kw_only=True)
class Key:
    """An entry of a legend."""

    colour: str
    """Its class."""
    label: str
    """What it stands for."""
    picture: Markup | None = None
    """How it is drawn, where that is more than a colour."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One chart: pictures for a wide and a narrow page, and the same in words and numbers."""

    key: str
    """Its name in the page's address."""
    title: str
    """Its heading."""
    help: str
    """How to read it, in a sentence or two."""
    words: str
    """The text alternative: what a reader would see in it."""
    wide: Markup
    """The picture for a laptop."""
    narrow: Markup
    """The picture for a phone."""
    legend: tuple[Key, ...] = ()
    """The meaning of colours and marks, where the picture does not say it."""
    headings: tuple[str, ...] = ()
    """Of the table of its numbers."""
    lines: tuple[tuple[str, ...], ...] = ()
    """Of the table of its numbers."""
    half: bool = False
    """Whether half of a laptop's page is enough."""


def series(rows: Sequence[Row]) -> dict[str, str]:
    """Return the colour class of each row by name: the same strategy has the same colour in every chart."""
    order = list(dict.fromkeys(_kind(row) for row in rows))
    return {row.name: f"s{order.index(_kind(row)) % theme.SERIES + 1}" for row in rows}


def strategy_series(rows: Sequence[Row]) -> dict[str, str]:
    """Return the colour class of each strategy."""
    colours = series(rows)
    return {(row.strategy or row.name): colours[row.name] for row in reversed(rows)}


def _kind(row: Row) -> str:
    # `single` on all cores is another thing to a reader than `single`; `ddp` on 2 and on 4 workers, or lanes, is not.
    if row.strategy == BASELINE:
        return row.name.replace(f", {plural(row.lanes, 'lane')}", "")
    return row.strategy or row.name


def means(row: Row) -> str:
    """Say on what a row ran."""
    return f"{plural(row.workers, 'worker')} × {plural(row.threads, 'thread')}" if row.threads else "not run"


class RowFrame:
    """Rows under each other with a common scale below; labels stand left of the rows, or above them on a phone.

    A row has a label, what it ran on, and a height; `right` is the room for figures at the end of the longest row, and
    `largest` the value that the scale reaches to.
    """

    def __init__(self, width: float, rows: Sequence[tuple[str, str, float]], *, right: float, largest: float) -> None:
        self.width = width
        self.largest = largest or 1.0
        labels = [(main, sub) for main, sub, _ in rows]
        heights = [height for _, _, height in rows]
        self.labels = labels
        self.heights = heights
        self.above = width < HALF - 1
        longest = max((max(len(main) * 1.05, len(sub) * 0.92) for main, sub in labels), default=0)
        self.left = 2.0 if self.above else min(240.0, 22 + longest * 13 * svg.LETTER)
        self.right = right
        self.gap = 30.0 if self.above else 20.0
        self.tops = [self._top(place) for place in range(len(labels))]
        self.bottom = (self.tops[-1] + heights[-1] if labels else 0.0) + 12
        self.height = self.bottom + BELOW

    def _top(self, place: int) -> float:
        first = 24.0 if self.above else 8.0
        return first + sum(self.heights[:place]) + place * self.gap

    def length(self, value: float) -> float:
        """Return how long a bar of this value is."""
        return value / self.largest * (self.width - self.left - self.right)

    def label(self, place: int) -> Markup:
        """Return the label of a row."""
        main, sub = self.labels[place]
        top, height = self.tops[place], self.heights[place]
        if self.above:
            main = svg.shorten(main, self.width * 0.55)
            name = svg.element("tspan", main, class_="strong")
            ran_on = svg.element("tspan", sub, class_="small quiet", dx=8)
            return svg.element("text", name, ran_on, x=0.0, y=top - 7, class_="halo")
        middle = top + height / 2
        room = self.left - 14
        return svg.text(room, middle - 1, svg.shorten(main, room), "strong", "end") + svg.text(
            room, middle + 15, svg.shorten(sub, room, 12), "small quiet", "end"
        )

    def axis(self, unit: float, title: str) -> Markup:
        """Return grid, ticks and title of the scale, in a unit of so much."""
        values = svg.ticks(self.largest / unit, 4 if self.above else 7)
        labels = svg.tick_labels(values)
        parts = []
        for value, label in zip(values, labels, strict=True):
            x = self.left + self.length(value * unit)
            parts.append(svg.line(x, 0, x, self.bottom, "axis" if value == 0 else "grid"))
            anchor = "start" if value == 0 and self.above else "middle"
            parts.append(svg.text(x, self.bottom + 17, label, "small quiet", anchor))
        middle = self.left if self.above else self.left + self.length(self.largest / 2)
        parts.append(svg.text(middle, self.bottom + 37, title, "small quiet", None if self.above else "middle"))
        return svg.together(parts)


@dataclass(frozen=True, kw_only=True)
class Plane:
    """Two axes with lines between them."""

    width: float
    """Of the picture."""
    height: float
    """Of the picture."""
    across: tuple[float, float]
    """Lowest and highest value of the axis across."""
    up: tuple[float, float]
    """Lowest and highest value of the axis that goes up."""
    left: float = 52.0
    """Room for the labels."""
    right: float = 18.0
    """Room at the end."""

    def x(self, value: float) -> float:
        """Return where a value stands across."""
        low, high = self.across
        return self.left + (value - low) / ((high - low) or 1) * (self.width - self.left - self.right)

    def y(self, value: float) -> float:
        """Return where a value stands, the highest on top."""
        low, high = self.up
        return 26 + (high - value) / ((high - low) or 1) * (self.height - 26 - BELOW)

    def axes(self, across: Sequence[float], title: str, up_title: str) -> Markup:
        """Return grid, ticks and titles; `across` are the ticks of that axis."""
        foot = self.height - BELOW
        parts = [svg.text(2, 12, up_title, "small quiet")]
        values = svg.ticks_between(*self.up, 5)
        for value, label in zip(values, svg.tick_labels(values), strict=True):
            parts.append(svg.line(self.left, self.y(value), self.width - self.right, self.y(value), "grid"))
            parts.append(svg.text(self.left - 8, self.y(value) + 4, label, "small quiet", "end"))
        for value, label in zip(across, svg.tick_labels(list(across)), strict=True):
            parts.append(svg.line(self.x(value), foot, self.x(value), foot + 5, "axis"))
            parts.append(svg.text(self.x(value), foot + 20, label, "small quiet", "middle"))
        parts.append(svg.line(self.left, foot, self.width - self.right, foot, "axis"))
        parts.append(svg.text((self.left + self.width - self.right) / 2, foot + 40, title, "small quiet", "middle"))
        return svg.together(parts)

    def line(
        self,
        points: Sequence[tuple[float, float]],
        kind: str,
        width: float,
        dash: str | None = None,
        shift: float | None = None,
    ) -> Markup:
        """Return a line through points; its dashes may be shifted."""
        d = "".join(
            f"{'L' if place else 'M'}{svg.number(self.x(x))} {svg.number(self.y(y))}"
            for place, (x, y) in enumerate(points)
        )
        return svg.element("path", d=d, class_=kind, stroke_width=width, stroke_dasharray=dash, stroke_dashoffset=shift)
