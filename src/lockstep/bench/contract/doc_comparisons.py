"""A saved comparison as the table of a page, and single ratios of a benchmark in its sentences.

<!-- comparison first --> ... the table of docs/figures/first.json ... <!-- /comparison -->
The step takes <!-- ratio ddp: mlp, 2 workers: ddp / torch DDP -->0.50<!-- /ratio --> of torch's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lockstep.bench.contract.cells import number
from lockstep.bench.contract.measurements import Quantity, Result, Unit
from lockstep.errors import BadInput
from lockstep.report.parity import FIRST, OTHER_LANES
from lockstep.report.units import duration, rate, size

COMPARISON = re.compile(r"(<!-- comparison (?P<name>[\w-]+) -->\n).*?(\n?<!-- /comparison -->)", re.DOTALL)
RATIO = re.compile(r"(<!-- ratio (?P<name>[\w-]+): (?P<what>[^>]+?) -->)[^<]*(<!-- /ratio -->)")
METRIC = "accuracy"
COLUMNS = (
    "strategy",
    "workers",
    "step",
    "samples/s",
    "speed-up",
    "memory, all ranks",
    "loss",
    METRIC,
    "digest, parity",
)


def named_comparisons(text: str) -> set[str]:
    """Return the comparisons that a page shows."""
    return {match["name"] for match in COMPARISON.finditer(text)}


def named_ratios(text: str) -> set[tuple[str, str]]:
    """Return the ratios that a page's sentences hold: benchmark and figure."""
    return {(match["name"], match["what"]) for match in RATIO.finditer(text)}


def fill_comparisons(text: str, comparisons: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a page with its tables of comparisons made anew; those that are not given stay."""

    def made(match: re.Match[str]) -> str:
        comparison = comparisons.get(match["name"])
        return match[0] if comparison is None else match[1] + comparison_table(comparison) + "\n<!-- /comparison -->"

    return COMPARISON.sub(made, text)


def fill_ratios(text: str, results: Mapping[str, Result]) -> str:
    """Return a page with the ratios in its sentences made anew."""

    def made(match: re.Match[str]) -> str:
        result = results.get(match["name"])
        if result is None:
            return match[0]
        ratios = {figure.what: figure.ratio.value for figure in result.figures}
        if match["what"] not in ratios:
            raise BadInput(f"bench {match['name']} has no figure {match['what']!r}; it has {', '.join(ratios)}")
        return match[1] + number(Unit.RATIO, Quantity(value=ratios[match["what"]])) + match[4]

    return RATIO.sub(made, text)


def comparison_table(comparison: Mapping[str, Any]) -> str:
    """Return the rows of a comparison as Markdown; a column that no row has a number for is left out."""
    rows = [_cells(row) for row in comparison["rows"]]
    headings = [name for name in COLUMNS if any(cells.get(name) for cells in rows)]
    lines = [headings, ["---"] * len(headings), *([cells.get(name, "") for name in headings] for cells in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _cells(row: Mapping[str, Any]) -> dict[str, str]:
    """Return the cells of a row, by column."""
    name = f"`{row['name']}`"
    if not row["repeats"]:
        return {"strategy": name, "workers": row["why_not"]}
    faster, metric = row["speed_up"], (row["metrics"] or {}).get(METRIC)
    cells = (
        name,
        str(row["workers"]),
        duration(row["step_seconds"]),
        rate(row["samples_per_second"]),
        "" if faster is None else f"{faster:.2f}",
        size(row["total_memory"]),
        "" if row["loss"] is None else f"{row['loss']:.4f}",
        "" if metric is None else f"{metric:.1%}",
        f"`{row['digest'][:8]}` {_parity(row['parity'])}".strip(),
    )
    return dict(zip(COLUMNS, cells, strict=True))


def _parity(words: str) -> str:
    """Return the first words: whether the bits are the same, or the likely cause."""
    if words == FIRST:
        return "first"
    if words.startswith(OTHER_LANES):
        return OTHER_LANES
    return words if len(words) <= 40 else words.rpartition(": ")[2].partition(" (")[0]
