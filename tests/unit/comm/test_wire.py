"""A call reads back as it was written, and a mismatch names both sides."""

from __future__ import annotations

import pytest
import torch

from lockstep.comm.wire import (
    DTYPES,
    OPS,
    SIGNATURE_BYTES,
    Call,
    CollectiveKind,
    describe_mismatch,
    numbered,
    unpack_signature,
)

CALLS = [
    Call(CollectiveKind.barrier),
    Call(CollectiveKind.all_reduce, 10, torch.float32, OPS.index("max")),
    Call(CollectiveKind.broadcast, 2**40, torch.complex128, root=63, part=5),
]


@pytest.mark.parametrize("call", CALLS)
def test_a_call_reads_back(call: Call) -> None:
    signature = numbered(call.signature(), 77)
    assert len(signature) == SIGNATURE_BYTES
    assert unpack_signature(signature) == (call, 77)


def test_every_field_shows_in_the_bytes() -> None:
    seen = set()
    for call in [*CALLS, CALLS[1]._replace(numel=11), CALLS[1]._replace(op=0), CALLS[1]._replace(root=0)]:
        seen.add(numbered(call.signature(), 1))
    assert len(seen) == 6


def test_all_dtypes_have_a_code() -> None:
    assert {torch.float32, torch.bfloat16, torch.bool, torch.float8_e5m2, torch.complex64} <= set(DTYPES)
    assert len(DTYPES) < 255


def test_the_text_names_both_sides() -> None:
    said = [("rank 0", "all_reduce #3"), ("rank 1", "broadcast #3"), ("rank 2", "all_reduce #3")]
    text = describe_mismatch(said)
    assert "rank 0, rank 2 called all_reduce #3; rank 1 called broadcast #3" in text
