"""Strategies: who computes which lane, where and when. A folder describes one, and `strategy.py` in it computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.errors import BadInput
from lockstep.registry import STRATEGIES, PeerDescription, describe
from lockstep.registry.base import import_object

if TYPE_CHECKING:
    from lockstep.strategies.base import Strategy


def check_exact(name: str, exact: bool) -> None:
    """Refuse to make a strategy inexact that has no tree to leave out."""
    if not exact and not describe(name).exact:
        able = ", ".join(description.name for description in STRATEGIES.all() if description.exact)
        raise BadInput(f"strategy {name} is never exact: an inexact sum can be asked of {able} only")


def find(name: str) -> type[Strategy]:
    """Return the class of a strategy by the name a user types."""
    description = describe(name)
    if isinstance(description, PeerDescription):
        raise BadInput(f"{name} has a loop and a launch of its own: use it by `lockstep run --strategy {name}` alone")
    if (reason := description.unavailable()) is not None:
        raise BadInput(reason)
    implementation: type[Strategy] = import_object(STRATEGIES.get(name).implementation)
    return implementation
