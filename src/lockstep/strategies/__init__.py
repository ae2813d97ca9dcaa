"""Strategies: who computes which lane, where and when."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from lockstep.errors import BadInput, nearest

if TYPE_CHECKING:
    from lockstep.strategies.base import Strategy

# The names as typed and as shown. Looked up on use: a strategy may need what is not installed.
STRATEGIES = {
    "single": ("lockstep.strategies.single", "Single"),
    "dp": ("lockstep.strategies.dp", "DP"),
    "ddp": ("lockstep.strategies.ddp", "DDP"),
    "torch-ddp": ("lockstep.strategies.torch_ddp", "TorchDDP"),
}
# Other trainers on the same recipe: the program of one rank, and who starts it.
PEERS = {
    "lightning": ("lockstep.peers.lightning", "itself"),
    "accelerate": ("lockstep.peers.accelerate", "torchrun"),
}
ONE_PROCESS = frozenset({"single", "dp"})
EXACT = frozenset({"single", "dp", "ddp"})  # one digest, whatever the workers
SHARES_MEMORY = frozenset({"ddp"})  # wants the shm backend where all workers are on one host


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
