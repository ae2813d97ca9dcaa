"""Elements of a picture, and the numbers on its axes.

[Note: safe markup] `element` is the one place where text becomes markup: it escapes every string that is not markup
already, so what comes from a run is text wherever it stands.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from markupsafe import Markup, escape

NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML cannot hold, not even escaped."""
TINIEST = 1e-290
"""Differences below this are no axis: their tenth would be no number any more."""
LETTER = 0.56
"""Width of a letter, in sizes of its font; a guess that is right for most."""


def number(value: float) -> str:
    """Write a coordinate, short."""
    return f"{value:.1f}".removesuffix(".0")


def element(name: str, *content: str, **attributes: object) -> Markup:
    """Return an element; in names of attributes an underscore is a hyphen, and one at the end is nothing."""
    inside = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_escaped(number(value) if isinstance(value, float) else str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    body = "".join(_escaped(part) for part in content)
    # see [Note: safe markup]
    return Markup(f"<{name}{inside}>{body}</{name}>" if body else f"<{name}{inside}/>")  # noqa: S704


def _escaped(text: str) -> Markup:
    return text if isinstance(text, Markup) else escape(NOT_XML.sub("\ufffd", text))


def together(parts: Iterable[str]) -> Markup:
    """Return parts one after another; text among them is escaped."""
    return Markup("").join(_escaped(part) for part in parts)


def text(x: float, y: float, words: str, kind: str = "", anchor: str | None = None) -> Markup:
    """Return text with its base line at y; the anchor is `middle`, `end` or none."""
    return element("text", words, x=float(x), y=float(y), class_=kind or None, text_anchor=anchor)


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    """Return a straight line."""
    return element("path", d=f"M{number(x1)} {number(y1)}L{number(x2)} {number(y2)}", class_=kind)


def bar(x: float, y: float, width: float, height: float, kind: str, tip: str = "", radius: float = 3) -> Markup:
    """Return a bar that grows to the right, its far corners round."""
    width = max(width, 0.75)
    bend = min(radius, width / 2, height / 2)
    straight = f"M{number(x)} {number(y)}h{number(width - bend)}"
    d = (
        f"{straight}q{number(bend)} 0 {number(bend)} {number(bend)}v{number(height - 2 * bend)}"
        f"q0 {number(bend)} {number(-bend)} {number(bend)}h{number(bend - width)}z"
    )
    return element("path", d=d, class_=f"fill {kind}", data_tip=tip or None)


def block(x: float, y: float, width: float, height: float, kind: str, tip: str = "") -> Markup:
    """Return a plain rectangle."""
    return element(
        "rect",
        x=float(x),
        y=float(y),
        width=max(float(width), 0.4),
        height=float(height),
        class_=f"fill {kind}",
        data_tip=tip or None,
    )


def whisker(low: float, high: float, y: float, cap: float = 4) -> Markup:
    """Return a spread from low to high, with caps."""
    n = number
    d = f"M{n(low)} {n(y)}H{n(high)}M{n(low)} {n(y - cap)}V{n(y + cap)}M{n(high)} {n(y - cap)}V{n(y + cap)}"
    return element("path", d=d, class_="under") + element("path", d=d, class_="whisker")


def key(*content: str) -> Markup:
    """Return a small picture for a legend; its label says what it is."""
    return element("svg", *content, viewBox="0 0 30 14", class_="key", aria_hidden="true")


def picture(width: float, height: float, words: str, *content: str) -> Markup:
    """Return the whole picture with its text alternative."""
    return element(
        "svg",
        *content,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {number(width)} {number(height)}",
        role="img",
        aria_label=words,
    )


def shorten(words: str, width: float, size: float = 13) -> str:
    """Cut words to what fits, with an ellipsis."""
    room = int(width / (size * LETTER))
    return words if len(words) <= room else words[: max(1, room - 1)].rstrip() + "…"


def ticks(largest: float, count: int = 5) -> list[float]:
    """Return round numbers from 0 up to the largest value, about `count` of them."""
    return ticks_between(0.0, largest, count)


def ticks_between(low: float, high: float, count: int = 5) -> list[float]:
    """Return round numbers inside low to high: steps of 1, 2 or 5 times a power of ten."""
    if not high - low > TINIEST:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(times * power for times in (1, 2, 5, 10) if times * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(place * step, 12) for place in range(first, last + 1)]


def tick_labels(values: list[float]) -> list[str]:
    """Write ticks with the decimals that tell them apart, and no more."""
    places = 0
    if len(values) > 1:
        places = max(0, -math.floor(math.log10(abs(values[1] - values[0])) + 1e-9))
    return [f"{value:,.{places}f}" for value in values]
