"""`tensorflow`: twins of two recipes in TensorFlow, under MultiWorkerMirroredStrategy, in a Python of its own."""

from __future__ import annotations

from lockstep.registry import PeerDescription
from lockstep.tensorflow.environment import why_not


def _unavailable() -> str | None:
    return None if (why := why_not()) is None else f"strategy tensorflow: {why}"


PEER = PeerDescription(
    name="tensorflow",
    help="TensorFlow's MultiWorkerMirroredStrategy, with twins of `mlp` and `cifar100`",
    program="lockstep.peers.tensorflow.program",
    launcher="spawn",
    python="lockstep.peers.tensorflow.python:rank_python",
    twins=("mlp", "cifar100", "cifar100:float64"),
    prepare="lockstep.peers.tensorflow.prepare:prepare",
    unavailable=_unavailable,
)
