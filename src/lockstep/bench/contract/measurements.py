"""What a benchmark returns: tables, figures with their goals, and notes; one form for all, also as JSON.

A table has named columns with units. A measured cell is a number with its spread. A figure is a ratio of two sides,
ours and theirs, from one run: ours / theirs where the goal is "at most", theirs / ours (how many times as fast) where
it is "at least".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

SCHEMA = 1


class Unit(StrEnum):
    """What a number counts."""

    SECONDS = "s"
    BYTES = "B"
    COUNT = "count"
    RATIO = "ratio"
    SHARE = "share"
    """A part of a whole that may be negative, shown in percent with its sign."""


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A number with its spread."""

    value: float
    """The median, or the only one."""
    low: float | None = None
    """The lower end of the spread; the column or figure says which."""
    high: float | None = None
    """The upper end."""
    samples: tuple[float, ...] = ()
    """Everything that the value was made from, where there is more than one."""

    def __post_init__(self) -> None:
        numbers = [number for number in (self.value, self.low, self.high, *self.samples) if number is not None]
        if not all(map(math.isfinite, numbers)):
            raise ValueError(f"a benchmark measured {numbers}: expected finite numbers")

    @property
    def ends(self) -> tuple[float, float] | None:
        """Both ends of the spread."""
        return None if self.low is None or self.high is None else (self.low, self.high)


Cell = int | str | Quantity | None
"""A number or a name that identifies the row, a measured number, or the reason why there is none."""


@dataclass(frozen=True, kw_only=True)
class TableColumn:
    """A column of a table."""

    name: str
    """Its heading."""
    unit: Unit | None = None
    """Of its measured numbers; None where it identifies the row."""
    spread: str = ""
    """What the ends of the spread are, for example `quartiles`."""
    beside: str = ""
    """A column of the same unit: the ratio to it is shown in brackets."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of the same columns."""

    name: str
    """One word; the documentation names tables by it."""
    title: str
    """What is shown."""
    columns: tuple[TableColumn, ...]
    """In the order of display."""
    rows: tuple[Mapping[str, Cell], ...]
    """Cells by the name of the column; a cell that is left out is empty."""

    def __post_init__(self) -> None:
        units = {column.name: column.unit for column in self.columns}
        for row in self.rows:
            for name, cell in row.items():
                if name not in units or (isinstance(cell, Quantity) and units[name] is None):
                    raise ValueError(f"table {self.name}: {cell!r} in column {name!r} needs that column, with a unit")


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side of a ratio."""

    name: str
    """Who, or what."""
    unit: Unit
    """Of the number."""
    measured: Quantity
    """What was measured."""


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What a ratio should be."""

    limit: float
    """At most this; or at least, where larger is better."""
    at_least: bool = False
    """Whether larger is better."""

    def reached(self, ratio: float) -> bool:
        """Tell whether a ratio is as it should be."""
        return ratio >= self.limit if self.at_least else ratio <= self.limit


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A ratio of two sides that were measured in the same run."""

    what: str
    """Which ratio."""
    ours: Side
    """Our side."""
    theirs: Side
    """The other: a stock part, another way, or a limit."""
    ratio: Quantity
    """Ours over theirs; theirs over ours where the goal is "at least"."""
    spread: str = ""
    """What the ends of the ratio's spread are, for example `single starts`."""
    goal: Goal
    """What the ratio should be."""
    reached: bool | None = None
    """Whether it is; None in a quick run, which judges no goal."""


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """What the function of a benchmark returns."""

    tables: tuple[Table, ...] = ()
    """What was measured."""
    figures: tuple[Figure, ...] = ()
    """The ratios that have a goal."""
    notes: tuple[str, ...] = ()
    """What a reader has to know."""


@dataclass(frozen=True, kw_only=True)
class Result(Measurements):
    """One run of a benchmark."""

    benchmark: str
    """Its name."""
    quick: bool
    """Whether it was the quick form, whose numbers mean nothing."""
    settings: Mapping[str, int | tuple[int | str, ...]]
    """The value of every option."""
    environment: Mapping[str, str | int]
    """Versions and processors."""
    seconds: float
    """How long all of it took."""
    schema: int = SCHEMA
    """Of this form."""


def encode(result: Result) -> str:
    """Return a result as JSON."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(result), indent=1).decode()


def decode(text: str | bytes) -> Result:
    """Read a result from JSON; another form is a `msgspec.ValidationError`."""
    import msgspec

    return msgspec.json.decode(text, type=Result)
