"""Settings and reasons in words, the same in every format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.report.units import plural

if TYPE_CHECKING:
    from lockstep.report.compare import Comparison

Setting = str | int | float | bool | None
"""What a setting of a comparison can be."""
COMMAND = "command"
"""The setting that is shown as a line to type."""


def label(name: str) -> str:
    """Return a setting's name as shown."""
    return str(name).replace("_", " ")


def value(setting: Setting) -> str:
    """Return a setting's value as shown."""
    return {True: "yes", False: "no"}[setting] if isinstance(setting, bool) else str(setting)


def written(path: Path) -> str:
    """Return a path as Unicode text, whatever bytes its name has."""
    return str(path).encode(errors="backslashreplace").decode()


def groups(comparison: Comparison) -> dict[str, list[tuple[str, str]]]:
    """Return what is needed to repeat a comparison, but for the command: labels and values by heading."""
    tables: dict[str, Mapping[str, Setting]] = {
        "Settings": {name: setting for name, setting in comparison.settings.items() if name != COMMAND},
        "Versions": comparison.versions,
        "Hosts": {str(place): host for place, host in enumerate(comparison.hosts, start=1)},
    }
    shown = {
        heading: [(label(name), value(setting)) for name, setting in table.items() if setting not in (None, "")]
        for heading, table in tables.items()
    }
    return {heading: lines for heading, lines in shown.items() if lines}


def trained(recipe: str, lanes: Iterable[int]) -> str:
    """Return what all ways of a comparison train, and in how many lanes, as far as that is known."""
    known = sorted(set(lanes))
    if not known:
        return recipe
    *several, last = known
    before = f"{', '.join(map(str, several))} and " if several else ""
    return f"{recipe}: {before}{plural(last, 'lane')}"


def shared(reasons: Iterable[tuple[str, str]], all_of: int = 0) -> list[tuple[str, str]]:
    """Return each reason once, after the names that it holds for, or `all of them` if they are so many."""
    named: dict[str, list[str]] = {}
    for name, reason in reasons:
        named.setdefault(reason, []).append(name)
    return [
        ("all of them" if len(names) == all_of > 1 else "; ".join(names), reason) for reason, names in named.items()
    ]
