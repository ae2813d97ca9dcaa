"""What the ranks used of their machines: CPUs over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from markupsafe import Markup

from lockstep.report import svg
from lockstep.report.charts.frame import DASHES, NARROW, WIDE, Chart, Plane, series
from lockstep.report.charts.losses import Style, curve_key, spread
from lockstep.report.compare import Comparison
from lockstep.report.units import size
from lockstep.train.schema.rank_jsonl import UsageLine

HEIGHT = 280.0
LEAST = 2
"""Looks that a line needs."""
MOST = 240
"""More looks than a screen shows are not drawn."""
LARGEST = 1e6
"""CPUs beyond this are no look at a machine."""


def charts(comparison: Comparison) -> Iterator[Chart]:
    """Yield the chart of CPUs in use over all ranks, of the first finished run of each row."""
    rows, runs = comparison.rows, comparison.runs
    usage = {row.name: runs[row.name][0].usage for row in rows if runs.get(row.name)}
    curves = {name: together(ranks) for name, ranks in usage.items()}
    curves = {name: points for name, points in curves.items() if len(points) >= LEAST}
    if not curves:
        return
    colours = series(rows)
    styles = {name: Style(2.0, DASHES[place % len(DASHES)]) for place, name in enumerate(curves)}
    yield Chart(
        key="cpus",
        title="CPUs in use",
        help="All ranks together, and what they have started, sampled by the ranks about once a second. A line well "
        "below the CPUs that were asked for leaves them idle.",
        words=_words(curves),
        wide=_draw(curves, styles, colours, WIDE),
        narrow=_draw(curves, styles, colours, NARROW),
        legend=tuple(curve_key(name, colours[name], style) for name, style in styles.items()),
        headings=("strategy", "mean CPUs", "largest memory of all ranks", "looks"),
        lines=tuple(
            (name, f"{_mean(curves[name]):.2f}", size(_memory(usage[name])), str(len(curves[name]))) for name in curves
        ),
    )


def together(ranks: Sequence[Sequence[UsageLine]]) -> list[tuple[float, float]]:
    """Return the CPUs of all ranks by seconds since the first look; each rank counts as at its last look before."""
    looks = sorted((line.time, rank, line.cpus) for rank, lines in enumerate(ranks) for line in lines)
    looks = [look for look in looks if look[2] < LARGEST]
    present: dict[int, float] = {}
    points = []
    for at, rank, cpus in looks:
        present[rank] = cpus
        if len(present) == len(ranks):
            points.append((at - looks[0][0], sum(present.values())))
    return [points[place] for place in spread(len(points), MOST)] if len(points) > MOST else points


def _mean(points: Sequence[tuple[float, float]]) -> float:
    return sum(value for _, value in points) / len(points)


def _memory(ranks: Sequence[Sequence[UsageLine]]) -> int:
    return sum(max((line.memory for line in lines), default=0) for lines in ranks)


def _words(curves: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    told = [f"{name} {_mean(points):.2f}" for name, points in curves.items()]
    return f"Lines of CPUs in use by seconds; the means: {', '.join(told)}."


def _draw(
    curves: Mapping[str, Sequence[tuple[float, float]]],
    styles: Mapping[str, Style],
    colours: Mapping[str, str],
    width: float,
) -> Markup:
    last = max(points[-1][0] for points in curves.values()) or 1.0
    high = max(value for points in curves.values() for _, value in points) or 1.0
    plane = Plane(width=width, height=HEIGHT, across=(0.0, last), up=(0.0, high * 1.08), left=54)
    parts = [plane.axes(svg.ticks(last, 6), "seconds", "CPUs")]
    for name, points in curves.items():
        style = styles[name]
        parts.append(plane.line(points, f"line flat {colours[name]}", style.width, style.dash))
    return svg.picture(width, HEIGHT, _words(curves), *parts)
