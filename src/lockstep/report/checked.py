"""Values out of a run folder, checked: a file that was changed or cut is refused by name and line, not believed."""

from __future__ import annotations

import math
import string
from collections.abc import Mapping
from typing import Any

from lockstep.errors import BadInput
from lockstep.train.records import AGAIN


def damaged(where: str, found: str, expected: str) -> BadInput:
    """Return the refusal of one value."""
    return BadInput(f"{where}: {found}, and {expected} was expected; the file was damaged or changed. {AGAIN}")


def table(where: str, content: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a field that is a JSON object."""
    found = content.get(name)
    if not isinstance(found, dict):
        raise damaged(where, _shown(content, name), "an object")
    return found


def number(where: str, content: Mapping[str, Any], name: str, *, least: float = 0.0) -> float:
    """Return a field that is a finite number, and not below `least`."""
    found = content.get(name)
    # A bool is an int to Python, and a NaN is a float; neither is a measurement.
    if not isinstance(found, int | float) or isinstance(found, bool) or not math.isfinite(found) or found < least:
        raise damaged(where, _shown(content, name), "a number" if least == -math.inf else f"a number from {least:g} up")
    return float(found)


def whole(where: str, content: Mapping[str, Any], name: str, *, least: int = 0) -> int:
    """Return a field that is a whole number."""
    found = content.get(name)
    if not isinstance(found, int) or isinstance(found, bool) or found < least:
        raise damaged(where, _shown(content, name), f"a whole number from {least} up")
    return found


def words(where: str, content: Mapping[str, Any], name: str) -> str:
    """Return a field that is text."""
    found = content.get(name)
    if not isinstance(found, str):
        raise damaged(where, _shown(content, name), "text")
    return found


def digest(where: str, content: Mapping[str, Any], name: str) -> str:
    """Return a field that is a SHA-256 in hex."""
    found = content.get(name)
    if not isinstance(found, str) or len(found) != 64 or not set(found) <= set(string.hexdigits):
        raise damaged(where, _shown(content, name), "64 hexadecimal digits")
    return found


def numbers(where: str, content: Mapping[str, Any], *, least: float = 0.0) -> dict[str, float]:
    """Return an object whose values are all numbers."""
    return {name: number(where, content, name, least=least) for name in content}


def _shown(content: Mapping[str, Any], name: str) -> str:
    return f"{name} is {content[name]!r:.60}" if name in content else f"{name} is missing"
