"""What a program printed when it failed, cut to the first traceback."""

from __future__ import annotations

import re

BEGIN = "Traceback (most recent call last):"
TAIL = 4000
PREFIX = re.compile(r"^\[?rank\s*\d+\]?:\s?")
"""What torch puts before each line of a rank."""


def first_traceback(text: str) -> str:
    """Return the first traceback with its last line; without any, the end of the text."""
    lines = [PREFIX.sub("", line) for line in text.splitlines()]
    begin = next((number for number, line in enumerate(lines) if BEGIN in line), None)
    if begin is None:
        return text.strip()[-TAIL:]
    end = begin + 1
    while end < len(lines) and (lines[end].startswith((" ", "\t")) or not lines[end]):
        end += 1
    return "\n".join(lines[begin : end + 1]).strip()
