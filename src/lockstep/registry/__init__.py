"""What there is to choose from: strategies, launchers, peers and benchmarks, each described by its own module.

A module describes itself in one frozen value, and imports neither torch nor the package of a peer to do so:

    kind       the value in the module               entry points             how a user names it
    strategy   STRATEGY = StrategyDescription(...)   lockstep.strategies      --strategy NAME
    launcher   LAUNCHER = LauncherDescription(...)   lockstep.launchers       --launcher NAME
    peer       PEER = PeerDescription(...)           lockstep.peers           --strategy NAME, or --peers
    benchmark  BENCHMARK = Benchmark(...)            lockstep.benchmarks      lockstep bench NAME

Every description has a name, one line of help, and a function that says why it cannot be used on this machine. What
else it must say stands in its class: `strategies.py`, `launchers.py`, `peers.py`, and `bench/contract`. The modules
that come with Lockstep are listed there, one line each; each `bench/bench_NAME.py` is a benchmark. Another package adds
its own by an entry point of the same name:

    [project.entry-points."lockstep.strategies"]
    toy = "lockstep_toy:STRATEGY"

Commands, help texts, comparisons, `doctor`, reports and the tables of the documentation read these registries and no
list of their own.
"""

from __future__ import annotations

from lockstep.errors import BadInput, nearest
from lockstep.registry.base import Description, Registry
from lockstep.registry.launchers import LAUNCHERS, LauncherDescription
from lockstep.registry.peers import PEERS, PeerDescription
from lockstep.registry.strategies import BASELINE, DEFAULT, STRATEGIES, StrategyDescription, TrainerDescription

__all__ = [
    "BASELINE",
    "DEFAULT",
    "LAUNCHERS",
    "PEERS",
    "STRATEGIES",
    "Description",
    "LauncherDescription",
    "PeerDescription",
    "Registry",
    "StrategyDescription",
    "TrainerDescription",
    "describe",
    "described",
]


def describe(name: str) -> TrainerDescription:
    """Return the strategy or the peer that a user calls so; refuse an unknown name."""
    description = described(name)
    if description is None:
        raise BadInput(f"no strategy called {name!r}{nearest(name, [*STRATEGIES.names(), *PEERS.names()])}")
    return description


def described(name: str) -> TrainerDescription | None:
    """Return the strategy or the peer of that name; None for one that is not installed here."""
    if name in PEERS:
        return PEERS.get(name)
    return STRATEGIES.get(name) if name in STRATEGIES else None
