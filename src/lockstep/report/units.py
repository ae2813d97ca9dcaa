"""Numbers as people read them: with a unit, and with no more digits than were measured."""

from __future__ import annotations

import math

TIME_UNITS = ((60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
SIZE_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
NONE = "–"


def time_unit(largest: float) -> tuple[float, str]:
    """Return the unit for an axis whose largest value is so many seconds: its length in seconds, and its name."""
    return next(((size, name) for size, name in TIME_UNITS if largest >= 2 * size), TIME_UNITS[-1])


def size_unit(largest: float) -> tuple[float, str]:
    """Return the unit for an axis whose largest value is so many bytes."""
    return next(((size, name) for size, name in SIZE_UNITS if largest >= 2 * size), (1.0, "B"))


def duration(seconds: float | None) -> str:
    """Write seconds: `2 min 14 s`, `3.42 s`, `41.6 ms`, `310 µs`."""
    if seconds is None or not math.isfinite(seconds):
        return NONE
    if seconds >= 120:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest} s"
    if seconds == 0:
        return "0 s"
    if seconds >= 1:
        return f"{digits(seconds)} s"
    return f"{digits(seconds * 1e3)} ms" if seconds >= 1e-3 else f"{digits(seconds * 1e6)} µs"


def spread(middle: float | None, ends: tuple[float, float] | None) -> str:
    """Write a duration with its ends, all in one unit: `41.6 ms (40.9 to 44.0)`."""
    if middle is None or ends is None or not middle:
        return duration(middle)
    unit, _ = next(((unit, name) for unit, name in TIME_UNITS[1:] if middle >= unit), TIME_UNITS[-1])
    low, high = (digits(end / unit) for end in ends)
    return f"{duration(middle)} ({low} to {high}{' s' if middle >= 120 else ''})"


def size(count: float | None) -> str:
    """Write bytes: `387 MiB`, `1.42 GiB`."""
    if count is None:
        return NONE
    if count < 2**10:
        return f"{count:.0f} B"
    unit, name = next((size, name) for size, name in SIZE_UNITS if count >= size)
    return f"{digits(count / unit)} {name}"


def digits(value: float) -> str:
    """Write a number with three digits that count: `0.123`, `1.23`, `12.3`, `1,234`."""
    places = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2 if abs(value) >= 0.9995 else 3
    return f"{value:,.{places}f}"


def rate(per_second: float | None) -> str:
    """Write samples per second."""
    return NONE if per_second is None else digits(per_second)


def times(factor: float | None) -> str:
    """Write a factor: `1.82×`."""
    return NONE if factor is None else f"{factor:.2f}×"


def share(part: float | None) -> str:
    """Write a share: `38 %`."""
    return NONE if part is None else f"{part * 100:.0f} %"


def plural(count: int, thing: str) -> str:
    """Write a count with its thing: `1 worker`, `2 workers`."""
    return f"{count} {thing}{'' if count == 1 else 's'}"
