"""The signature of a collective, by which ranks detect different calls instead of hanging or mixing data. Pure."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence


class CollectiveKind(IntEnum):
    """The collectives by their usual names."""

    barrier = 1
    broadcast = 2
    all_reduce = 3
    reduce = 4
    all_gather = 5
    gather = 6
    scatter = 7
    reduce_scatter = 8
    all_to_all = 9
    arena = 10


DTYPES: Final = sorted(
    {value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=lambda dtype: str(dtype)
)
_CODES: Final = {dtype: code for code, dtype in enumerate(DTYPES)}
OPS: Final = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")
SUM: Final = OPS.index("sum")
AVERAGE: Final = OPS.index("avg")
_NONE: Final = 255
_SEQUENCE: Final = struct.Struct("<Q")
_FORMAT: Final = struct.Struct("<BBBxiQQ32x")
SIGNATURE_BYTES: Final = _SEQUENCE.size + _FORMAT.size
"""The size of a numbered signature: a cache line."""


class Call(NamedTuple):
    """One collective as one rank called it; all fields must agree on all ranks."""

    kind: CollectiveKind
    numel: int = 0
    """Elements of one rank's tensor; 0 where ranks may differ."""
    dtype: torch.dtype | None = None
    op: int = _NONE
    """Index in OPS."""
    root: int = -1
    part: int = 0
    """Which tensor of a coalesced call, counted from 0."""

    def signature(self) -> bytes:
        """Return the call as ranks compare it, without its sequence number."""
        kind, numel, dtype, op, root, part = self
        code = _NONE if dtype is None else _CODES[dtype]
        return _FORMAT.pack(kind, op, code, root, numel, part)

    def text(self, sequence: int) -> str:
        """Return the call as an error shows it."""
        words = []
        if self.op != _NONE:
            words.append(OPS[self.op])
        if self.dtype is not None:
            words.append(f"{self.numel} x {str(self.dtype).removeprefix('torch.')}")
        if self.root >= 0:
            words.append(f"root {self.root}")
        if self.part:
            words.append(f"tensor {self.part} of a coalesced call")
        return f"{self.kind.name} #{sequence}" + (f" ({', '.join(words)})" if words else "")


def numbered(signature: bytes, sequence: int) -> bytes:
    """Return a signature with the sequence number of its collective in the group."""
    return _SEQUENCE.pack(sequence) + signature


def unpack_signature(signature: bytes) -> tuple[Call, int]:
    """Return the call and the sequence number of a numbered signature."""
    (sequence,) = _SEQUENCE.unpack_from(signature)
    kind, op, code, root, numel, part = _FORMAT.unpack_from(signature, _SEQUENCE.size)
    dtype = None if code == _NONE else DTYPES[code]
    return Call(CollectiveKind(kind), numel, dtype, op, root, part), sequence


def describe_mismatch(calls: Sequence[tuple[str, str]]) -> str:
    """Return an error message that names the ranks that called each collective, the commonest call first."""
    sides: dict[str, list[str]] = {}
    for rank, text in calls:
        sides.setdefault(text, []).append(rank)
    by_count = sorted(sides.items(), key=lambda side: -len(side[1]))
    listing = "; ".join(f"{', '.join(ranks)} called {text}" for text, ranks in by_count)
    return f"the ranks called different collectives: {listing}. All ranks must make the same calls in the same order"
