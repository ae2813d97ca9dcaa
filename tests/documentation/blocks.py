"""The blocks of a page."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>[\w-]*)(?P<rest>[^\n]*)\n(?P<body>.*?)^(?P=indent)```[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
TITLE = re.compile(r'title="([^"]+)"')


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: Path
    """Where it stands."""
    line: int
    """On which line."""
    language: str
    """What follows the fence."""
    title: str
    """Its title: the name of a file."""
    text: str
    """What is inside."""

    @property
    def where(self) -> str:
        """Name the place in a message."""
        return f"{self.page.name}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page, from top to bottom."""
    text = page.read_text(encoding="utf-8")
    made = []
    for match in FENCE.finditer(text):
        title = TITLE.search(match["rest"])
        body = "".join(line.removeprefix(match["indent"]) for line in match["body"].splitlines(keepends=True))
        line = text.count("\n", 0, match.start()) + 1
        made.append(Block(page, line, match["language"], title[1] if title else "", body))
    return made
