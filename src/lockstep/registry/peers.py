"""What a peer says of itself; and the peers there are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

from lockstep.registry.base import Registry
from lockstep.registry.strategies import STRATEGIES, TrainerDescription

PREPARED = "prepared"
"""The folder in a run folder with what was made for a peer's ranks; it is gone when the run is over."""


@dataclass(frozen=True, kw_only=True)
class PeerDescription(TrainerDescription):
    """Another trainer on the same recipe, with its own loop, sample order and launch, on one host."""

    program: str
    """The module that is run for a rank, with the run folder as its argument; see `lockstep.peers.base`."""
    launcher: str | None = None
    """The launcher that starts its ranks, by name; None: the program is started once, and starts the other ranks."""
    python: str = ""
    """`module:function` that returns the Python of its ranks, if that is not this one."""
    twins: tuple[str, ...] = ()
    """The built-in recipes of which it has a twin in its own framework, and trains no others; empty: it trains any."""
    prepare: str = ""
    """`module:function(folder, recipe, plan)` that writes into a new folder what its ranks need and cannot make; it is
    called before any of them is started, and the folder, `PREPARED` in the run folder, is removed after the last."""


def needs_package(peer: str, package: str) -> Callable[[], str | None]:
    """Return the `unavailable` of a peer that needs a package."""

    def unavailable() -> str | None:
        if find_spec(package) is not None:
            return None
        return (
            f"strategy {peer} needs the package {package}, which is not installed: pip install 'lockstep-train[peers]'"
        )

    return unavailable


PEERS = Registry(
    "peer",
    PeerDescription,
    value="PEER",
    modules=(
        "lockstep.peers.lightning",
        "lockstep.peers.accelerate",
        "lockstep.peers.tensorflow",
    ),
    group="lockstep.peers",
    beside=STRATEGIES,
)
"""Named by `--strategy`, like strategies: no peer has a strategy's name."""
