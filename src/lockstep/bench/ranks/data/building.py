"""Building a Ragged from a list of tensors, beside a plain copy of the same bytes.

    1. a bit more memory than a side needs is touched and given back
    2. one side is timed, in memory that is new to the process, and gives it back
    3. the other side is timed likewise

So both pay for the kernel's handing out memory, and neither for the host's: the host of a virtual machine takes back
what was unused for seconds, and handing it over again takes ten times as long, at times that are nobody's doing.
The copy is torch's own, with all its threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from lockstep.bench.ranks.data.loader_epochs import trim
from lockstep.data import Ragged

COPIED = 2**30
"""Bytes that a side moves at least, so that short copies are repeated more often."""


def rounds(size: int, repeats: int) -> int:
    """Return how many pairs of so many bytes are timed."""
    return repeats * max(3, min(20, COPIED // size))


def building(values: torch.Tensor, repeats: int) -> tuple[list[float], list[float]]:
    """Return the seconds of building and of copying, in pairs, there and back."""
    parts = [row.clone() for row in values]
    built: list[float] = []
    copied: list[float] = []
    sides: list[tuple[Callable[[], Any], list[float]]] = [(lambda: Ragged(parts), built), (values.clone, copied)]
    for turn in range(rounds(values.nbytes, repeats)):
        torch.empty(values.nbytes * 5 // 4, dtype=torch.uint8).fill_(1)
        for make, times in sides if turn % 2 else reversed(sides):
            trim()
            began = time.perf_counter()
            made = make()
            times.append(time.perf_counter() - began)
            del made
    return built, copied
