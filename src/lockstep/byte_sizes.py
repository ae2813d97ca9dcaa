"""Sizes of memory as they are typed: `2GiB`, `512 MiB`, `1.5GB`, or a plain number of bytes."""

from __future__ import annotations

import math
import re

from lockstep.errors import BadInput, nearest

BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
DECIMAL = ("B", "KB", "MB", "GB", "TB", "PB")
UNITS = {name: 1024**power for power, name in enumerate(BINARY)} | {
    name: 1000**power for power, name in enumerate(DECIMAL)
}
SHORT = {"K": "KiB", "M": "MiB", "G": "GiB", "T": "TiB"}
"""What a letter alone means, as in other tools' options."""
MOST = 2**53
"""More than any machine has: a mistyped unit."""
FORM = re.compile(r"\s*(?P<number>[+-]?[0-9]+(?:\.[0-9]+)?)\s*(?P<unit>[A-Za-z]*)\s*")


def read_bytes(text: str, option: str) -> int:
    """Return the bytes that were typed for an option; refuse what is no size, and what no machine has."""
    match = FORM.fullmatch(text)
    if match is None:
        raise BadInput(f"{option} {text!r} is not a size: give a number with a unit, e.g. {option} 2GiB")
    unit = match["unit"] or "B"
    known = {name.lower(): name for name in UNITS} | {short.lower(): name for short, name in SHORT.items()}
    if unit.lower() not in known:
        raise BadInput(f"{option} {text}: there is no unit {unit!r}{nearest(unit, [*BINARY[1:5], *DECIMAL[1:5]])}")
    count = float(match["number"]) * UNITS[known[unit.lower()]]
    if not 1 <= count < MOST:
        problem = "at least 1 byte is needed" if count < 1 else "no machine has as much"
        raise BadInput(f"{option} {text}: {problem}; give the memory that there is, e.g. {option} 2GiB")
    return int(count)


def write_bytes(count: float) -> str:
    """Return a size as it can be typed, with three digits, rounded up: so much is enough."""
    power = 0
    while count >= 1000 * 1024**power and power < len(BINARY) - 1:
        power += 1
    value = count / 1024**power
    places = 0 if value >= 100 or power == 0 else 1 if value >= 10 else 2
    rounded = math.ceil(value * 10**places) / 10**places
    return f"{rounded:.{places}f}{BINARY[power]}"
