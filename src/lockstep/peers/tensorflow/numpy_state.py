"""Digest, fingerprints and weights file of a state that is arrays of numpy: the same hashes as those of tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.digest import BLOCK, Described, block_hash, digest, tensor_hash
from lockstep.train.schema.fingerprints_jsonl import Fingerprint
from lockstep.train.weights import WeightsDraft

Array = np.ndarray[Any, Any]
State = Mapping[str, Array]
"""By the names of the digest: `parameter/...`, `buffer/...`, `optimizer/...`; as they lie in torch."""


def state_hash(array: Array) -> str:
    """Return a tensor's hash, over the hashes of its blocks."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return tensor_hash(block_hash(flat[i : i + BLOCK].tobytes()) for i in range(0, flat.size, BLOCK))


def state_digest(state: State) -> str:
    """Return the digest of a whole state."""
    return digest(Described(name, str(one.dtype), one.shape, state_hash(one)) for name, one in state.items())


def fingerprints(state: State) -> dict[str, Fingerprint]:
    """Return hash, mean and norm of every tensor."""
    return {name: _fingerprint(one) for name, one in state.items()}


def _fingerprint(array: Array) -> Fingerprint:
    wide = array.astype(np.float64)
    total, squares = float(wide.sum()), float((wide * wide).sum())
    if not array.size or not (math.isfinite(total) and math.isfinite(squares)):
        return Fingerprint(state_hash(array)[:16], None, None)
    return Fingerprint(state_hash(array)[:16], total / array.size, math.sqrt(squares))


def write_weights(path: Path, state: State, about: Mapping[str, Any], most_bytes: int | None) -> None:
    """Write parameters and buffers under the plain model's names, unless they have more than `most_bytes`."""
    if most_bytes is not None and sum(one.nbytes for one in state.values()) > most_bytes:
        return
    names = {name.partition("/")[2]: name for name in state}
    draft = WeightsDraft(path, about, names, [(name, str(one.dtype), one.shape) for name, one in state.items()])
    try:
        for name, one in state.items():
            draft.add(name, np.ascontiguousarray(one).tobytes())
        draft.finish()
    finally:
        draft.drop()
