"""Where the time of a step goes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from markupsafe import Markup

from lockstep.report import svg
from lockstep.report.charts.frame import NARROW, WIDE, Chart, Key, RowFrame, means
from lockstep.report.compare import Comparison
from lockstep.report.rows import Row
from lockstep.report.units import duration, share, time_unit
from lockstep.train.schema.scalars import PARTS

BAR = 26.0
LABELS = {
    "data": "data",
    "forward": "forward",
    "backward": "backward",
    "exchange": "exchange",
    "optimizer": "optimizer",
    "wait": "waiting for the slowest rank",
}
LEGEND = tuple(Key(colour=f"p-{part}", label=LABELS[part]) for part in PARTS)


def charts(comparison: Comparison) -> Iterator[Chart]:
    """Yield the chart of step parts, if any row measured them."""
    rows = comparison.rows
    measured = [row for row in rows if row.parts and sum(row.parts.values()) > 0]
    if not measured:
        return
    yield Chart(
        key="parts",
        title="Where a step's time goes",
        help="A mean step, the mean over ranks. Exchange is the part that nothing else hides; what runs behind "
        "backward costs no time and is not in the bar.",
        words=_words(measured),
        wide=_draw(measured, WIDE),
        narrow=_draw(measured, NARROW),
        legend=LEGEND,
        headings=("strategy", *(LABELS[part] for part in PARTS), "whole step", "exchange hidden"),
        lines=tuple(
            (row.name, *(duration(row.parts.get(part, 0.0)) for part in PARTS), duration(_whole(row)), _hidden(row))
            for row in measured
        ),
    )


def _whole(row: Row) -> float:
    return sum(row.parts.get(part, 0.0) for part in PARTS)


def _hidden(row: Row) -> str:
    return "" if row.overlap is None else share(row.overlap)


def _words(rows: Sequence[Row]) -> str:
    told = []
    for row in rows:
        largest = max(PARTS, key=lambda part: row.parts.get(part, 0.0))
        told.append(f"{row.name}: {duration(_whole(row))}, most of it {largest}")
    return f"Stacked bars of the parts of a step. {'; '.join(told)}."


def _draw(rows: Sequence[Row], width: float) -> Markup:
    longest = max(_whole(row) for row in rows)
    frame = RowFrame(width, [(row.name, means(row), BAR) for row in rows], right=80, largest=longest)
    unit, name = time_unit(longest)
    parts = [frame.axis(unit, f"time of a step, {name}")]
    for place, row in enumerate(rows):
        parts += [frame.label(place), _stack(row, frame, frame.tops[place])]
    return svg.picture(width, frame.height, _words(rows), *parts)


def _stack(row: Row, frame: RowFrame, top: float) -> Markup:
    x, whole, blocks = frame.left, _whole(row), []
    for part in PARTS:
        seconds = row.parts.get(part, 0.0)
        width = frame.length(seconds)
        if width < 0.3:
            x += width
            continue
        tip = f"{row.name}, {LABELS[part]}: {duration(seconds)}, {share(seconds / whole)} of the step"
        # The gap of a pixel tells neighbours apart where their colours do not.
        blocks.append(svg.block(x, top, width - (1 if width > 3 else 0), BAR, f"p-{part}", tip))
        x += width
    return svg.together([*blocks, svg.text(x + 8, top + BAR / 2 + 4.5, duration(whole), "strong")])
