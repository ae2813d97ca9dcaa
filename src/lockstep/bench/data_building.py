"""Building a Ragged from a list of tensors, beside a plain copy of the same bytes.

Both go into memory that is new to the process, so both pay for the kernel's handing it out, and neither for the
machine's: a virtual machine gets memory that it never used before from its host, ten times slower, and whichever side
came first would pay for that. The copy is torch's own, with all its threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from lockstep.bench.data_rank import trim
from lockstep.data import Ragged

COPIED = 2**30
"""Bytes that a side moves at least, so that short copies are repeated more often."""


def rounds(size: int, repeats: int) -> int:
    """Return how many pairs of so many bytes are timed."""
    return repeats * max(4, min(20, COPIED // size))


def building(values: torch.Tensor, repeats: int) -> tuple[list[float], list[float]]:
    """Return the seconds of building and of copying, in pairs, there and back."""
    parts = [row.clone() for row in values]
    built: list[float] = []
    copied: list[float] = []
    sides: list[tuple[Callable[[], Any], list[float]]] = [(lambda: Ragged(parts), built), (values.clone, copied)]
    both_at_once = [make() for make, _ in sides]  # the machine has this memory from now on
    del both_at_once
    for turn in range(rounds(values.nbytes, repeats)):
        for make, times in sides if turn % 2 else reversed(sides):
            trim()
            began = time.perf_counter()
            made = make()
            times.append(time.perf_counter() - began)
            del made
    return built, copied
