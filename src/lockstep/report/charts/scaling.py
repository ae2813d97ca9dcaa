"""How throughput grows with workers, beside the ideal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from markupsafe import Markup

from lockstep.report import svg
from lockstep.report.charts import marks
from lockstep.report.charts.frame import HALF, NARROW, Chart, Plane, strategy_series
from lockstep.report.compare import Comparison, Point
from lockstep.report.units import digits, plural, rate, share, times

HEIGHT = 330.0


def charts(comparison: Comparison) -> Iterator[Chart]:
    """Yield the chart of scaling, if there is more than one number of workers."""
    points = comparison.curve
    if len({point.workers for point in points}) < 2:
        return
    by_strategy = strategy_series(comparison.rows)
    colours = {point.curve: by_strategy.get(point.strategy, "s1") for point in points}
    names = list(colours)
    yield Chart(
        key="scaling",
        title="Scaling",
        help="Samples per second by number of workers. The dashed line is the ideal: twice the workers, twice the "
        "samples.",
        words=_words(points, names),
        wide=_draw(points, names, colours, HALF),
        narrow=_draw(points, names, colours, NARROW),
        legend=tuple(marks.key(name, colours[name], place) for place, name in enumerate(names)),
        headings=("strategy", "workers", "samples/s", "speed-up", "efficiency"),
        lines=tuple(
            (p.curve, str(p.workers), rate(p.samples_per_second), times(p.speed_up), share(p.efficiency))
            for p in points
        ),
        half=True,
    )


def _words(points: Sequence[Point], names: Sequence[str]) -> str:
    told = []
    for name in names:
        last = max((point for point in points if point.curve == name), key=lambda point: point.workers)
        efficient = f", efficiency {share(last.efficiency)}" if last.efficiency is not None else ""
        told.append(f"{name} {digits(last.samples_per_second)} on {plural(last.workers, 'worker')}{efficient}")
    return f"Lines of samples per second by workers: {'; '.join(told)}."


def _draw(points: Sequence[Point], names: Sequence[str], colours: dict[str, str], width: float) -> Markup:
    workers = sorted({point.workers for point in points})
    base = next((point.samples_per_second for point in points if point.workers == workers[0]), 0.0) / workers[0]
    top = max(base * workers[-1], *(point.samples_per_second for point in points)) * 1.05
    margin = (workers[-1] - workers[0]) * 0.05
    plane = Plane(
        width=width,
        height=HEIGHT,
        across=(workers[0] - margin, workers[-1] + margin),
        up=(0.0, top),
        left=20 + 7.5 * len(f"{top:,.0f}"),
    )
    ends = [(float(count), base * count) for count in (workers[0], workers[-1])]
    parts = [
        plane.axes([float(count) for count in workers], "workers", "samples per second"),
        plane.line(ends, "ideal", 1.5),
        svg.text(plane.x(ends[1][0]) - 14, plane.y(ends[1][1]) + 2, "ideal", "small quiet", "end"),
    ]
    for place, name in enumerate(names):
        own = [point for point in points if point.curve == name]
        line = [(float(point.workers), point.samples_per_second, _tip(point)) for point in own]
        parts += marks.curve(plane, line, colours[name], place)
    return svg.picture(width, HEIGHT, _words(points, names), *parts)


def _tip(point: Point) -> str:
    return f"{point.curve}: {digits(point.samples_per_second)} samples/s on {plural(point.workers, 'worker')}"
