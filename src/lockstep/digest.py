"""The digest: SHA-256 over a trained state, the same for the same bits, whoever holds which part of it.

    tensor   | block 0 | block 1 | ... | short last one |    of BLOCK elements, counted within the tensor
    hash     SHA-256 over the SHA-256 of each block's bytes, in order
    digest   SHA-256 over the name, dtype, shape and hash of each tensor, in name order

So each holder hashes the blocks that it holds, at the same time as the others, and nobody needs a whole tensor.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

BLOCK = 1 << 16
"""Elements that are hashed at once."""


class Described(NamedTuple):
    """A tensor as the digest sees it."""

    name: str
    """`parameter/...`, `buffer/...` or `optimizer/<parameter>/<key>`, with the plain model's names."""
    dtype: str
    """Without `torch.`."""
    shape: tuple[int, ...]
    """Of the plain tensor."""
    hash: str
    """Of its content."""


def block_hash(content: memoryview | bytes) -> bytes:
    """Return the hash of one block's bytes."""
    return hashlib.sha256(content).digest()


def tensor_hash(blocks: Iterable[bytes]) -> str:
    """Return a tensor's hash from those of its blocks, in order."""
    return hashlib.sha256(b"".join(blocks)).hexdigest()


def digest(tensors: Iterable[Described]) -> str:
    """Return the digest of a state; the order in which its tensors are given does not matter."""
    total = hashlib.sha256()
    for tensor in sorted(tensors):
        total.update(f"{tensor.name}\0{tensor.dtype}\0{tensor.shape}\0{tensor.hash}\0".encode())
    return total.hexdigest()
