"""Charts of a comparison, one file each: pure functions from rows and runs to pictures, words and numbers.

They are SVG made here, not figures of a plotting library: the page stays small enough to mail, needs no script to be
seen, takes the reader's theme by CSS alone, and every mark can carry its own text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.report.charts import lanes, losses, memory, metric_curves, parts, scaling, timeline, times

if TYPE_CHECKING:
    from lockstep.report.charts.frame import Chart
    from lockstep.report.compare import Comparison


def all_charts(comparison: Comparison) -> list[Chart]:
    """Return the charts that the runs have numbers for, in the order of the page."""
    rows, runs = comparison.rows, comparison.runs
    made = [
        times.chart(rows),
        scaling.chart(comparison.curve, rows),
        memory.chart(rows),
        lanes.chart(rows),
        parts.chart(rows),
        timeline.chart(rows, runs),
        losses.chart(rows, runs),
        *metric_curves.charts(rows, runs),
    ]
    return [chart for chart in made if chart is not None]
