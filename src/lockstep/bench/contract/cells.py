"""What a cell, a ratio and a goal look like, on a terminal and in Markdown."""

from __future__ import annotations

from collections.abc import Mapping

from lockstep.bench.contract.measurements import Cell, Figure, Goal, Quantity, Result, Side, TableColumn, Unit
from lockstep.report.units import digits, size, spread

FIGURES = "figures"
"""The name of the table of figures, which no other table has."""
HEADINGS = ("figure", "ours", "theirs", "ratio", "goal", "")


def heading(column: TableColumn) -> str:
    """Return the name, and what the numbers in brackets are."""
    inside = column.spread or (f"to {column.beside}" if column.beside else "")
    return f"{column.name} ({inside})" if inside else column.name


def cell_text(column: TableColumn, row: Mapping[str, Cell]) -> str:
    """Return what stands in a cell of a row."""
    cell = row.get(column.name)
    if not isinstance(cell, Quantity):
        return "" if cell is None else f"{cell:,}" if isinstance(cell, int) else cell
    assert column.unit is not None, "a table checks it"
    text = number(column.unit, cell)
    other = row.get(column.beside)
    if not isinstance(other, Quantity) or column.beside == column.name:
        return text
    return f"{text} ({_ratio(cell.value / other.value)})"


def number(unit: Unit, measured: Quantity) -> str:
    """Return a measured number with its unit and its spread."""
    ends = None if measured.low == measured.high else measured.ends
    if unit is Unit.SECONDS:
        return spread(measured.value, ends)
    write = {Unit.BYTES: size, Unit.COUNT: _count, Unit.RATIO: _ratio, Unit.SHARE: _share}[unit]
    return write(measured.value) + ("" if ends is None else " ({} to {})".format(*map(write, ends)))


def figure_texts(figure: Figure) -> tuple[str, ...]:
    """Return the cells of a figure, in the order of HEADINGS."""
    ratio = number(Unit.RATIO, figure.ratio)
    if figure.spread and ratio.endswith(")"):
        ratio = f"{ratio[:-1]}, {figure.spread})"
    reached = {True: "reached", False: "missed", None: "not judged"}[figure.reached]
    return figure.what, _side(figure.ours), _side(figure.theirs), ratio, _goal(figure.goal), reached


def headline(result: Result) -> str:
    """Return one line on what this is."""
    settings = ", ".join(f"{name} {_setting(value)}" for name, value in result.settings.items())
    where = "torch {torch}, Python {python}, {cpus} CPUs".format(**result.environment)
    quick = "QUICK RUN, its numbers mean nothing and no goal is judged: " if result.quick else ""
    return f"{quick}lockstep bench {result.benchmark}: {settings}; {where}"


def _side(side: Side) -> str:
    """Return who it is and its value; its spread stands in the tables."""
    return f"{side.name}: {number(side.unit, Quantity(value=side.measured.value))}"


def _goal(goal: Goal) -> str:
    return f"{'at least' if goal.at_least else 'at most'} {goal.limit:g}"


def _setting(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _ratio(value: float) -> str:
    if abs(value) >= 99.5:
        return digits(value)
    return f"{value:.2f}" if abs(value) >= 0.095 or not value else f"{value:.2g}"


def _share(value: float) -> str:
    return f"{value:+.1%}"
