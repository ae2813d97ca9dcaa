"""What follows from a call's dtype, shape and operator is worked out once and kept, up to a limit."""

from __future__ import annotations

from typing import TypeVar

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def keep(kept: dict[_Key, _Value], key: _Key, value: _Value, most: int) -> _Value:
    """Keep a value and return it; if there are `most` already, begin anew."""
    if len(kept) >= most:
        kept.clear()
    kept[key] = value
    return value
