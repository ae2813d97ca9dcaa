"""The order of samples: any part of an epoch's permutation, computed without the rest of it.

A keyed Feistel network is a bijection on the numbers below a power of two. A value outside 0..n-1 goes through the
network again until it is inside (cycle walking), which makes it a bijection on 0..n-1. So the first batch of a hundred
million samples takes a few microseconds and no list, and a run can resume at any step.

    bits of the position:  [ left | right ]      left  ^= hash(right, key 0)
                                                 right ^= hash(left,  key 1)     ... ROUNDS times
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lockstep.seeding import derive

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Words = NDArray[np.uint64]

ROUNDS = 8


def permutation(samples: int, *, seed: int, epoch: int, start: int = 0, stop: int | None = None) -> Words:
    """Return positions start..stop of the order in which this epoch visits `samples` samples."""
    stop = samples if stop is None else stop
    if not 0 <= start <= stop <= samples:
        raise ValueError(f"found positions {start}..{stop}, expected a part of 0..{samples}")
    keys = [np.uint64(derive("order", seed, epoch, number)) for number in range(ROUNDS)]
    bits = max(2, (samples - 1).bit_length())
    values = _shuffle(np.arange(start, stop, dtype=np.uint64), bits, keys)
    while (outside := np.flatnonzero(values >= samples)).size:
        values[outside] = _shuffle(values[outside], bits, keys)
    return values


def _shuffle(values: Words, bits: int, keys: list[np.uint64]) -> Words:
    width = np.uint64(bits // 2)
    low = np.uint64((1 << (bits // 2)) - 1)
    high = np.uint64((1 << (bits - bits // 2)) - 1)
    left, right = values >> width, values & low
    for number in range(0, ROUNDS, 2):
        left ^= _hash(right, keys[number]) & high
        right ^= _hash(left, keys[number + 1]) & low
    return (left << width) | right


def _hash(values: Words, key: np.uint64) -> Words:
    """Mix the bits of each word (the finalizer of splitmix64; uint64 wraps around by definition)."""
    mixed = values + key
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
