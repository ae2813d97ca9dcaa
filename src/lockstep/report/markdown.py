"""The comparison as Markdown, for an issue or a README."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lockstep.report.columns import columns
from lockstep.report.wording import COMMAND, groups

if TYPE_CHECKING:
    from lockstep.report.compare import Comparison
    from lockstep.report.rows import Row

SPECIAL = re.compile(r"([\\`*_\[\]<>|#~])")


def markdown(comparison: Comparison) -> str:
    """Return recommendation, table, reasons and settings."""
    blocks = [
        f"# {_plain(comparison.title)}",
        "\n".join(f"- {_plain(line)}" for line in comparison.recommendation),
        _table(comparison),
        _stars(comparison),
        "## Why",
        "\n".join(line for row in comparison.rows for line in _reasons(row)),
        "## To repeat it",
        _command(comparison),
        *(
            f"{heading}:\n\n" + "\n".join(f"- {_plain(name)}: {_plain(text)}" for name, text in lines)
            for heading, lines in groups(comparison).items()
        ),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _plain(words: str) -> str:
    """Return text that Markdown shows as it is, on one line."""
    return SPECIAL.sub(r"\\\1", " ".join(words.split()))


def _table(comparison: Comparison) -> str:
    shown = columns(comparison.rows)
    lines = [
        ["strategy", *(_plain(column.heading) for column in shown)],
        ["---", *("---:" if column.number else "---" for column in shown)],
    ]
    for row in comparison.rows:
        cells = [column.text(row) for column in shown]
        if not row.repeats:
            cells = [row.why_not, *[""] * (len(shown) - 1)]
        lines.append([_plain(cell) for cell in (row.name, *cells)])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _stars(comparison: Comparison) -> str:
    coupled = sorted({row.depends_on_workers for row in comparison.rows if row.depends_on_workers})
    return f"\\* {_plain(', '.join(coupled))}: depends on the number of workers." if coupled else ""


def _reasons(row: Row) -> list[str]:
    failed = "did not run" if not row.repeats else "a repeat failed"
    said = [row.why, f"{failed}: {row.why_not}" if row.why_not else "", *row.notes]
    return [f"- **{_plain(row.name)}**: {' '.join(_plain(line) for line in said if line) or 'nothing stands out.'}"]


def _command(comparison: Comparison) -> str:
    command = comparison.settings.get(COMMAND)
    return f"```sh\n{str(command).replace('```', '')}\n```" if command else ""
