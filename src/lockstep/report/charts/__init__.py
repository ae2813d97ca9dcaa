"""Charts of a comparison, one file each: `charts(comparison)` gives their pictures, words and numbers, if any.

They are SVG made here, not figures of a plotting library: the page stays small enough to mail, needs no script to be
seen, takes the reader's theme by CSS alone, and every mark can carry its own text.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockstep.report.charts.frame import Chart
    from lockstep.report.compare import Comparison

CHARTS = (
    "times",
    "scaling",
    "memory",
    "cpus",
    "lanes",
    "parts",
    "timeline",
    "lane_flow",
    "losses",
    "metric_curves",
)
"""The modules of this folder that draw charts, in the order of the page."""


def all_charts(comparison: Comparison) -> list[Chart]:
    """Return the charts that the runs have numbers for, in the order of the page."""
    return [chart for name in CHARTS for chart in _drawn(name, comparison)]


def _drawn(name: str, comparison: Comparison) -> Iterable[Chart]:
    drawn: Iterable[Chart] = import_module(f"{__name__}.{name}").charts(comparison)
    return drawn
