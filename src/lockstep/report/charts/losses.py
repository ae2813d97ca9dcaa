"""The losses of the ways over each other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from lockstep.report import svg
from lockstep.report.charts.frame import NARROW, WIDE, Chart, Plane, series
from lockstep.report.collect import Run
from lockstep.report.rows import Row

HEIGHT = 340.0
POINTS = 240
"""More than a screen shows is not drawn."""
TABLE = 8


def chart(rows: Sequence[Row], runs: Mapping[str, Sequence[Run]]) -> Chart | None:
    """Return the chart of losses: the first finished run of each row."""
    curves = {row.name: runs[row.name][0].losses for row in rows if runs.get(row.name)}
    curves = {name: losses for name, losses in curves.items() if any(map(math.isfinite, losses))}
    if not curves:
        return None
    colours = series(rows)
    last = max(len(losses) for losses in curves.values()) - 1
    shown = sorted({round(place * last / (TABLE - 1)) for place in range(TABLE)})
    return Chart(
        key="losses",
        title="Loss",
        help="The loss of each step over all ranks. Lines that are the same lie over each other, the first one widest.",
        words=_words(curves),
        wide=_draw(curves, colours, WIDE),
        narrow=_draw(curves, colours, NARROW),
        legend=tuple((colours[name], name) for name in curves),
        headings=("strategy", *(f"step {step}" for step in shown)),
        lines=tuple(
            (name, *(f"{losses[step]:.6g}" if step < len(losses) else "" for step in shown))
            for name, losses in curves.items()
        ),
    )


def _words(curves: Mapping[str, Sequence[float]]) -> str:
    first = next(iter(curves.values()))
    same = [name for name, losses in curves.items() if tuple(losses) == tuple(first)]
    told = [f"{name} ends at {losses[-1]:.4f}" for name, losses in curves.items()]
    equal = f" {', '.join(same)} have the same loss in every step." if len(same) > 1 else ""
    return f"Lines of loss by step: {', '.join(told)}.{equal}"


def thin(losses: Sequence[float]) -> list[tuple[float, float]]:
    """Return at most POINTS points, first and last among them; steps without a finite loss are left out."""
    last = len(losses) - 1
    steps = range(len(losses)) if last < POINTS else {round(i * last / (POINTS - 1)) for i in range(POINTS)}
    return [(float(step), losses[step]) for step in sorted(steps) if math.isfinite(losses[step])]


def _draw(curves: Mapping[str, Sequence[float]], colours: Mapping[str, str], width: float) -> str:
    lines = {name: thin(losses) for name, losses in curves.items()}
    values = [value for points in lines.values() for _, value in points]
    low, high = min(values), max(values)
    room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    last = float(max(len(losses) for losses in curves.values()) - 1)
    plane = Plane(width=width, height=HEIGHT, across=(0.0, max(last, 1.0)), up=(low - room, high + room), left=54)
    parts = [plane.axes([tick for tick in svg.ticks(max(last, 1.0), 6) if tick == int(tick)], "step", "loss")]
    for place, (name, points) in enumerate(lines.items()):
        # Equal curves must all be seen: each lies on the one before it and is thinner.
        thick = max(1.6, 9.0 - 2.2 * place)
        parts.append(plane.line(points, f"line {colours[name]}", thick))
    return svg.picture(width, HEIGHT, _words(curves), "".join(parts))
