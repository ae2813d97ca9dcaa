"""The metrics of the evaluations over the steps: a chart for each metric."""

from __future__ import annotations

from collections.abc import Mapping

from markupsafe import Markup

from lockstep.report import svg
from lockstep.report.charts.frame import HALF, NARROW, Chart, Plane, series
from lockstep.report.charts.losses import LARGEST, Style, curve_key, spread, styles
from lockstep.report.collect import Run
from lockstep.report.compare import Comparison

HEIGHT = 330.0
MOST = 6
"""Metrics that have a chart."""
Curve = tuple[tuple[int, float], ...]
"""Steps done, and the value then."""


def charts(comparison: Comparison) -> list[Chart]:
    """Return a chart for each metric that was evaluated more than once: the first finished run of each row."""
    rows, runs = comparison.rows, comparison.runs
    shown = {row.name: runs[row.name][0] for row in rows if runs.get(row.name)}
    names = list(dict.fromkeys(name for run in shown.values() for line in run.evaluations for name in line.metrics))
    made: list[Chart] = []
    for metric in names:
        curves = {name: curve for name, run in shown.items() if (curve := _curve(run, metric))}
        if any(len(curve) > 1 for curve in curves.values()):
            made.append(_chart(f"evaluation-{len(made) + 1}", metric, curves, series(rows)))
    return made[:MOST]


def _curve(run: Run, metric: str) -> Curve:
    values = [(line.steps, line.metrics.get(metric)) for line in run.evaluations]
    return tuple((steps, value) for steps, value in values if value is not None and abs(value) < LARGEST)


def _chart(key: str, metric: str, curves: Mapping[str, Curve], colours: Mapping[str, str]) -> Chart:
    return Chart(
        key=key,
        title=f"Evaluation: {metric}",
        help=f"{metric} over the evaluation data, after so many steps.",
        words=_words(metric, curves),
        wide=_draw(metric, curves, colours, HALF),
        narrow=_draw(metric, curves, colours, NARROW),
        legend=tuple(curve_key(name, colours[name], style) for name, style in _styles(curves).items()),
        headings=("strategy", "steps", metric),
        lines=tuple(
            (name, str(steps), f"{value:.6g}")
            for name, curve in curves.items()
            for steps, value in (curve[place] for place in spread(len(curve)))
        ),
        half=True,
    )


def _styles(curves: Mapping[str, Curve]) -> dict[str, Style]:
    """Return how to draw the curves: ways with the same values at the same steps share one line."""
    return styles({name: [number for point in curve for number in point] for name, curve in curves.items()})


def _words(metric: str, curves: Mapping[str, Curve]) -> str:
    told = [f"{name} ends at {curve[-1][1]:.4f} after {curve[-1][0]} steps" for name, curve in curves.items()]
    return f"Lines of {metric} by steps: {', '.join(told)}."


def _draw(metric: str, curves: Mapping[str, Curve], colours: Mapping[str, str], width: float) -> Markup:
    values = [value for curve in curves.values() for _, value in curve]
    low, high = min(values), max(values)
    room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    last = float(max(curve[-1][0] for curve in curves.values()))
    plane = Plane(width=width, height=HEIGHT, across=(0.0, last), up=(low - room, high + room), left=54)
    parts = [plane.axes([tick for tick in svg.ticks(last, 6) if tick == int(tick)], "steps", metric)]
    for name, style in _styles(curves).items():
        points = [(float(steps), value) for steps, value in curves[name]]
        parts.append(plane.line(points, f"line flat {colours[name]}", style.width, style.dash, style.shift))
    return svg.picture(width, HEIGHT, _words(metric, curves), *parts)
