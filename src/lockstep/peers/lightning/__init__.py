"""`lightning`: the recipe in Lightning's Trainer, which starts its own ranks."""

from __future__ import annotations

from lockstep.registry import PeerDescription
from lockstep.registry.peers import needs_package

PEER = PeerDescription(
    name="lightning",
    help="PyTorch Lightning's Trainer, with the settings that it documents as its fastest",
    program="lockstep.peers.lightning.program",
    unavailable=needs_package("lightning", "lightning"),
)
