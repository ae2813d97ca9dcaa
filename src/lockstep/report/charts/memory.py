"""How much memory each rank took at its peak."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from markupsafe import Markup

from lockstep.report import svg
from lockstep.report.charts.frame import HALF, NARROW, Chart, RowFrame, means, series
from lockstep.report.compare import Comparison
from lockstep.report.rows import Row
from lockstep.report.units import plural, size, size_unit


def charts(comparison: Comparison) -> Iterator[Chart]:
    """Yield the chart of peak memory, a bar for each rank."""
    rows = comparison.rows
    measured = [row for row in rows if row.peak_memory and max(row.peak_memory) > 0]
    if not measured:
        return
    measures = sorted({row.memory_measure for row in measured if row.memory_measure})
    measure = ", ".join(measures) or "peak memory"
    colours = series(rows)
    reserved = any(row.peak_reserved for row in measured)
    yield Chart(
        key="memory",
        title="Memory per rank",
        help=f"A bar for each rank. Measured: {measure}. The figure is the largest rank's, and in brackets all ranks'.",
        words=_words(measured),
        wide=_draw(measured, colours, measure, HALF),
        narrow=_draw(measured, colours, measure, NARROW),
        headings=("strategy", "rank", "peak", "measure", *(["reserved"] if reserved else [])),
        lines=tuple(
            (row.name, str(rank), size(count), row.memory_measure, *([size(_reserved(row, rank))] if reserved else []))
            for row in measured
            for rank, count in enumerate(row.peak_memory)
        ),
        half=True,
    )


def _reserved(row: Row, rank: int) -> int | None:
    return row.peak_reserved[rank] if row.peak_reserved else None


def _words(rows: Sequence[Row]) -> str:
    told = [
        f"{row.name} {size(row.largest_memory)}, {size(row.total_memory)} over {plural(len(row.peak_memory), 'rank')}"
        for row in rows
    ]
    return f"Bars of peak memory by rank; largest rank, then all: {'; '.join(told)}."


def _heights(ranks: int) -> tuple[float, float]:
    """Return the height of a bar and the way to the next."""
    return (12.0, 15.0) if ranks <= 4 else (7.0, 9.0) if ranks <= 16 else (3.0, 3.5)


def _draw(rows: Sequence[Row], colours: dict[str, str], measure: str, width: float) -> Markup:
    heights = [max(26.0, _heights(len(row.peak_memory))[1] * len(row.peak_memory)) for row in rows]
    largest = max(row.largest_memory for row in rows)
    labels = [(row.name, means(row), height) for row, height in zip(rows, heights, strict=True)]
    frame = RowFrame(width, labels, right=150, largest=largest)
    unit, name = size_unit(largest)
    parts = [frame.axis(unit, f"{measure}, {name}")]
    for place, row in enumerate(rows):
        thick, way = _heights(len(row.peak_memory))
        first = frame.tops[place] + (heights[place] - way * len(row.peak_memory) + way - thick) / 2
        parts.append(frame.label(place))
        for rank, count in enumerate(row.peak_memory):
            held = f", {size(_reserved(row, rank))} reserved" if row.peak_reserved else ""
            tip = f"{row.name}, rank {rank}: {size(count)}{held}"
            parts.append(svg.bar(frame.left, first + rank * way, frame.length(count), thick, colours[row.name], tip))
        end = frame.left + frame.length(row.largest_memory) + 8
        total = f" ({size(row.total_memory)})" if len(row.peak_memory) > 1 else ""
        middle = frame.tops[place] + heights[place] / 2 + 4.5
        parts.append(
            svg.element(
                "text",
                size(row.largest_memory),
                svg.element("tspan", total, class_="small quiet"),
                x=end,
                y=middle,
                class_="strong",
            )
        )
    return svg.picture(width, frame.height, _words(rows), *parts)
