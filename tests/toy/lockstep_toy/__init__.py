"""What the toy package adds to Lockstep, described without importing torch."""

from __future__ import annotations

from lockstep.registry import LauncherDescription, PeerDescription, StrategyDescription

STRATEGY = StrategyDescription(
    name="toy",
    help="every worker keeps a model of its own, and gradients are all-reduced one by one",
    implementation="lockstep_toy.strategy:Toy",
    least_workers=2,
)
LAUNCHER = LauncherDescription(
    name="toy",
    help="processes of this machine, each a fresh Python",
    implementation="lockstep_toy.launcher:ToyLauncher",
)
PEER = PeerDescription(
    name="toy-peer",
    help="a plain loop around PyTorch's DistributedDataParallel",
    program="lockstep_toy.peer",
    launcher="toy",
)
