"""What more lanes cost: the time of a step by number of lanes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from markupsafe import Markup

from lockstep.report import svg
from lockstep.report.charts import marks
from lockstep.report.charts.frame import NARROW, WIDE, Chart, Plane, series
from lockstep.report.compare import Comparison
from lockstep.report.rows import Row
from lockstep.report.sweep import sweeps
from lockstep.report.units import duration, plural, time_unit, times

HEIGHT = 330.0


def charts(comparison: Comparison) -> Iterator[Chart]:
    """Yield the chart of lanes, if anything ran with more than one number of them."""
    rows = comparison.rows
    swept = sweeps(rows)
    if not swept:
        return
    colours = series(rows)
    yield Chart(
        key="lanes",
        title="What lanes cost",
        help="Time of a step by number of lanes. The bits are the same on any number of workers up to the lanes, so a "
        "curve that stays flat gives that for nothing.",
        words=_words(swept),
        wide=_draw(swept, colours, WIDE),
        narrow=_draw(swept, colours, NARROW),
        legend=tuple(marks.key(name, colours[own[0].name], place) for place, (name, own) in enumerate(swept.items())),
        headings=("strategy", "lanes", "step", "of the fewest lanes"),
        lines=tuple(
            (name, str(row.lanes), duration(row.step_seconds), times(_share(row, own[0])))
            for name, own in swept.items()
            for row in own
        ),
    )


def _share(row: Row, least: Row) -> float:
    return (row.step_seconds or 0.0) / (least.step_seconds or 1.0)


def _words(swept: Mapping[str, Sequence[Row]]) -> str:
    told = [
        f"{name} {', '.join(f'{duration(row.step_seconds)} with {row.lanes}' for row in own)}"
        for name, own in swept.items()
    ]
    return f"Lines of the time of a step by lanes: {'; '.join(told)}."


def _draw(swept: Mapping[str, Sequence[Row]], colours: Mapping[str, str], width: float) -> Markup:
    lanes = sorted({row.lanes for own in swept.values() for row in own})
    longest = max(row.step_seconds or 0.0 for own in swept.values() for row in own)
    unit, name = time_unit(longest)
    margin = (lanes[-1] - lanes[0]) * 0.05
    plane = Plane(
        width=width,
        height=HEIGHT,
        across=(lanes[0] - margin, lanes[-1] + margin),
        up=(0.0, longest / unit * 1.05),
        left=20 + 7.5 * len(f"{longest / unit:,.0f}"),
    )
    parts = [plane.axes([float(count) for count in lanes], "lanes", f"step, {name}")]
    for place, (label, own) in enumerate(swept.items()):
        points = [(float(row.lanes), (row.step_seconds or 0.0) / unit, _tip(label, row)) for row in own]
        parts += marks.curve(plane, points, colours[own[0].name], place)
    return svg.picture(width, HEIGHT, _words(swept), *parts)


def _tip(label: str, row: Row) -> str:
    return f"{label}: {duration(row.step_seconds)} with {plural(row.lanes, 'lane')}"
