"""The files that all figures of the documentation come from, and the pages that show them.

docs/figures/plan.toml     what is run                docs/figures/NAME.json        a result, with machine and versions
docs/figures/unsaved.txt   results that are not there yet: their blocks hold numbers of an earlier run
docs/figures/NAME-CHART.svg                           pictures of a comparison
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from lockstep.bench.contract.benchmark import environment
from lockstep.bench.contract.cells import FIGURES as FIGURES_TABLE
from lockstep.bench.contract.doc_comparisons import fill_comparisons, fill_ratios, named_comparisons, named_ratios
from lockstep.bench.contract.doc_tables import blocks, fill
from lockstep.bench.contract.measurements import Result, decode
from lockstep.errors import BadInput
from lockstep.report.charts import all_charts
from lockstep.report.charts.alone import alone
from lockstep.report.files import json_text
from lockstep.report.gather import gather
from lockstep.report.units import duration

FIGURES = "docs/figures"
PLAN = f"{FIGURES}/plan.toml"
UNSAVED = f"{FIGURES}/unsaved.txt"


def pages(root: Path) -> list[Path]:
    """Return the README and every page of the documentation."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def saved(root: Path) -> tuple[dict[str, Result], dict[str, dict[str, Any]]]:
    """Return the saved results of benchmarks, and the saved comparisons, by name."""
    results: dict[str, Result] = {}
    comparisons: dict[str, dict[str, Any]] = {}
    for file in sorted((root / FIGURES).glob("*.json")):
        content = msgspec.json.decode(file.read_bytes())
        if "rows" in content:
            comparisons[file.stem] = content
            continue
        result = decode(file.read_bytes())
        if result.quick:
            raise BadInput(f"{file.name} is of a quick run, which says nothing: save a full one")
        results[file.stem] = result
    return results, comparisons


def named(text: str) -> set[str]:
    """Return the results that a page's blocks are made of."""
    return (
        {block.benchmark for block in blocks(text)} | named_comparisons(text) | {name for name, _ in named_ratios(text)}
    )


def filled(text: str, results: dict[str, Result], comparisons: dict[str, dict[str, Any]]) -> str:
    """Return a page with everything in it that comes from saved results."""
    return fill_ratios(fill_comparisons(fill(text, results), comparisons), results)


def fill_pages(root: Path) -> Iterator[Path]:
    """Write the blocks of all pages anew, yield those that changed, and note whose results are not saved yet."""
    results, comparisons = saved(root)
    lacking: set[str] = set()
    for page in pages(root):
        text = page.read_text(encoding="utf-8")
        lacking |= named(text) - set(results) - set(comparisons)
        made = filled(text, results, comparisons)
        if made != text:
            page.write_text(made, encoding="utf-8")
            yield page
    (root / UNSAVED).write_text("".join(f"{name}\n" for name in sorted(lacking)))


def save_comparison(folder: Path, target: Path, charts: Sequence[str]) -> None:
    """Save the numbers of a comparison, with machine and versions, and some of its charts as pictures beside them."""
    comparison = gather([folder])
    content = {**comparison.as_json(), "environment": environment()}
    content.pop("runs")
    target.write_text(json_text(content, indent=1))
    drawn = {chart.key: chart for chart in all_charts(comparison)}
    for key in charts:
        if key not in drawn:
            raise BadInput(f"the comparison {target.stem} has no chart {key!r}; it has {', '.join(drawn)}")
        target.with_name(f"{target.stem}-{key}.svg").write_text(alone(drawn[key]))


def against(before: bytes, here: bytes) -> list[str]:
    """Return lines that put a result of this machine beside the saved one."""
    content, mine = msgspec.json.decode(before), msgspec.json.decode(here)
    machines = [
        f"{one['environment'].get('cpus')} CPUs, torch {one['environment'].get('torch')}" for one in (content, mine)
    ]
    if "rows" in content:
        lines = [f"{content['title']}: saved ({machines[0]}), here ({machines[1]})"]
        steps = {row["name"]: row["step_seconds"] for row in mine["rows"]}
        for row in content["rows"]:
            now = steps.get(row["name"])
            if row["step_seconds"] and now:
                ratio = now / row["step_seconds"]
                lines.append(
                    f"    {row['name']}: step {duration(row['step_seconds'])}, {duration(now)}: {ratio:.2f} of it"
                )
        return lines
    result, now_result = decode(before), decode(here)
    lines = [f"bench {result.benchmark}, {FIGURES_TABLE}: saved ({machines[0]}), here ({machines[1]})"]
    ratios = {figure.what: figure for figure in now_result.figures}
    for figure in result.figures:
        other = ratios.get(figure.what)
        if other is not None:
            goal = f"goal at {'least' if figure.goal.at_least else 'most'} {figure.goal.limit:g}"
            lines.append(f"    {figure.what}: {figure.ratio.value:.2f}, {other.ratio.value:.2f} ({goal})")
    return lines
