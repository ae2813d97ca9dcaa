"""Results as Markdown, and the marked blocks of the documentation that are made from them.

<!-- bench ddp: steps figures -->
... the tables `steps` and `figures` of the benchmark `ddp` ...
<!-- /bench -->
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lockstep.bench.contract.cells import FIGURES, HEADINGS, cell_text, figure_texts, heading
from lockstep.bench.contract.measurements import Result, Table
from lockstep.errors import BadInput

SPECIAL = re.compile(r"([\\`*_\[\]<>|#~])")
BLOCK = re.compile(
    r"(?P<begin><!-- bench (?P<name>[\w-]+): (?P<tables>[\w -]+?) -->\n)(?:.*?\n)??(?P<end><!-- /bench -->)", re.DOTALL
)


@dataclass(frozen=True)
class MarkedBlock:
    """A place in the documentation that tables are put into."""

    benchmark: str
    """Whose tables."""
    tables: tuple[str, ...]
    """Which, by name."""


def blocks(text: str) -> list[MarkedBlock]:
    """Return the marked blocks of a page."""
    return [MarkedBlock(match["name"], tuple(match["tables"].split())) for match in BLOCK.finditer(text)]


def fill(text: str, results: Mapping[str, Result]) -> str:
    """Return a page with the blocks of these benchmarks made anew; the others stay."""

    def made(match: re.Match[str]) -> str:
        result = results.get(match["name"])
        if result is None:
            return match[0]
        tables = "\n\n".join(named_table(result, name) for name in match["tables"].split())
        return f"{match['begin']}{tables}\n{match['end']}"

    return BLOCK.sub(made, text)


def named_table(result: Result, name: str) -> str:
    """Return one table of a result, or its figures."""
    if name == FIGURES:
        return _lines(HEADINGS, [figure_texts(figure) for figure in result.figures], numbers=("ratio", "goal"))
    tables = {table.name: table for table in result.tables}
    if name not in tables:
        raise BadInput(f"bench {result.benchmark} has no table {name!r}; it has {', '.join([*tables, FIGURES])}")
    return _table(tables[name])


def _table(table: Table) -> str:
    rows = [[cell_text(column, row) for column in table.columns] for row in table.rows]
    numbers = [heading(column) for column in table.columns if column.unit is not None]
    return _lines([heading(column) for column in table.columns], rows, numbers=numbers)


def _lines(headings: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[str]) -> str:
    rule = ["---:" if name in numbers else "---" for name in headings]
    shown = [list(map(_plain, headings)), rule, *(list(map(_plain, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in shown)


def _plain(words: str) -> str:
    """Return text that Markdown shows as it is, on one line."""
    return SPECIAL.sub(r"\\\1", " ".join(words.split()))
