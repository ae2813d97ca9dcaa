"""Curves that are told apart without their colours: each has its dashes and the shape of its marks."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from lockstep.report import svg
from lockstep.report.charts.frame import DASHES, Key, Plane


def key(name: str, colour: str, place: int) -> Key:
    """Return the entry of a legend for the curve in this place."""
    line = svg.element(
        "path", d="M0 7H30", class_=f"line {colour}", stroke_width=2.5, stroke_dasharray=DASHES[place % len(DASHES)]
    )
    return Key(colour=colour, label=name, picture=svg.key(line, shape(15, 7, colour, place)))


def curve(plane: Plane, points: Sequence[tuple[float, float, str]], colour: str, place: int) -> list[Markup]:
    """Return a line through points, and a mark with its words at each."""
    line = plane.line([(x, y) for x, y, _ in points], f"line {colour}", 2.5, DASHES[place % len(DASHES)])
    return [line, *(shape(plane.x(x), plane.y(y), colour, place, tip) for x, y, tip in points)]


def shape(x: float, y: float, colour: str, place: int, tip: str = "") -> Markup:
    """Return a mark: a circle, a square, a triangle or a diamond."""
    n = svg.number
    shapes = (
        f"M{n(x - 5)} {n(y)}a5 5 0 1 0 10 0a5 5 0 1 0 -10 0z",
        f"M{n(x - 4.5)} {n(y - 4.5)}h9v9h-9z",
        f"M{n(x)} {n(y - 6)}l5.5 9.5h-11z",
        f"M{n(x)} {n(y - 6)}l6 6l-6 6l-6 -6z",
    )
    return svg.element("path", d=shapes[place % len(shapes)], class_=f"ring {colour}", data_tip=tip or None)
