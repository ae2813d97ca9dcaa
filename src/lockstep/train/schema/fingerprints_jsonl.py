"""fingerprints.jsonl: the weights at a few steps, so that two runs can be told apart by step and tensor."""

from __future__ import annotations

from pathlib import Path

import msgspec

from lockstep.train.schema.reading import read_lines
from lockstep.train.schema.scalars import Count, Hash, Record

NAME = "fingerprints.jsonl"


class Fingerprint(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One tensor, written as the list [hash, mean, norm]."""

    hash: Hash
    """The first 8 bytes of the tensor's content hash, in hexadecimal digits."""
    mean: float | None
    """Of its values; null if it is not a finite number, or was not taken."""
    norm: float | None
    """Of its values; null if it is not a finite number, or was not taken."""


class FingerprintLine(Record, frozen=True, kw_only=True):
    """All tensors after one step."""

    step: Count
    """Counted from 0 over the whole run."""
    parameters: dict[str, Fingerprint]
    """By name."""
    buffers: dict[str, Fingerprint]
    """By name."""


def is_fingerprint_step(step: int, *, last: bool) -> bool:
    """Say whether fingerprints are taken after a step: 0, the powers of two, and the last."""
    return step & (step - 1) == 0 or last


def read_fingerprints(folder: Path) -> tuple[FingerprintLine, ...]:
    """Read the fingerprints of a run; none if they were not taken."""
    path = folder / NAME
    return tuple(read_lines(path, FingerprintLine)) if path.exists() else ()
