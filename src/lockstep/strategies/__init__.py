"""Strategies: who computes which lane, where and when."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from lockstep.errors import BadInput, nearest
from lockstep.strategy_names import EXACT, ONE_PROCESS, PEERS, STRATEGIES

if TYPE_CHECKING:
    from lockstep.strategies.base import Strategy


def check_name(name: str) -> None:
    """Refuse a strategy that does not exist."""
    if name not in STRATEGIES and name not in PEERS:
        raise BadInput(f"no strategy called {name!r}{nearest(name, [*STRATEGIES, *PEERS])}")


def workers_of(name: str, workers: int) -> int:
    """Return how many workers a strategy has when so many are asked for."""
    check_name(name)
    return 1 if name == "single" else workers


def processes(name: str, workers: int) -> int:
    """Return how many processes a strategy wants for so many workers."""
    check_name(name)
    return 1 if name in ONE_PROCESS else workers


def check_exact(name: str, exact: bool) -> None:
    """Refuse to make a strategy inexact that has no tree to leave out."""
    check_name(name)
    if not exact and name not in EXACT:
        raise BadInput(
            f"strategy {name} is never exact: an inexact sum can be asked of {', '.join(sorted(EXACT))} only"
        )


def find(name: str) -> type[Strategy]:
    """Return the class of a strategy by the name a user types."""
    check_name(name)
    if name in PEERS:
        raise BadInput(f"{name} has a loop and a launch of its own: use it by `lockstep run --strategy {name}` alone")
    module, attribute = STRATEGIES[name]
    found: type[Strategy] = getattr(importlib.import_module(module), attribute)
    return found
