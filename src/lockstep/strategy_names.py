"""The strategies by name: what a command, a run and a report have to know of them without importing one."""

from __future__ import annotations

STRATEGIES = {
    "single": ("lockstep.strategies.single", "Single"),
    "dp": ("lockstep.strategies.dp", "DP"),
    "ddp": ("lockstep.strategies.ddp", "DDP"),
    "torch-ddp": ("lockstep.strategies.torch_ddp", "TorchDDP"),
}
"""The names as typed and as shown. Looked up on use: a strategy may need what is not installed."""
PEERS = {
    "lightning": ("lockstep.peers.lightning", "itself"),
    "accelerate": ("lockstep.peers.accelerate", "torchrun"),
}
"""Other trainers on the same recipe, with an order of samples of their own: a rank's program, and who starts it."""
ONE_PROCESS = frozenset({"single", "dp"})
"""Whose workers are threads of one process."""
EXACT = frozenset({"single", "dp", "ddp"})
"""That give one digest, whatever the workers."""
SHARES_MEMORY = frozenset({"ddp"})
"""That want the shm backend where all workers are on one host."""
