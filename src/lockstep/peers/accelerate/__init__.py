"""`accelerate`: the recipe in a loop with Hugging Face Accelerate, started by torchrun."""

from __future__ import annotations

from lockstep.registry import PeerDescription
from lockstep.registry.peers import needs_package

PEER = PeerDescription(
    name="accelerate",
    help="Hugging Face Accelerate in the loop of its guide",
    program="lockstep.peers.accelerate.program",
    launcher="torchrun",
    unavailable=needs_package("accelerate", "accelerate"),
)
