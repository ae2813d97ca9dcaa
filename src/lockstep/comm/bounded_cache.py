"""A cache with a limit, for what depends only on a call's dtype, shape and operator."""

from __future__ import annotations

from typing import TypeVar

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def insert(cache: dict[_Key, _Value], key: _Key, value: _Value, limit: int) -> _Value:
    """Add a value and return it; a cache that already has `limit` values is emptied first."""
    if len(cache) >= limit:
        cache.clear()
    cache[key] = value
    return value
