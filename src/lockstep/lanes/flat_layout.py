"""Where each tensor lies in a flat buffer: a pure function of shapes, the same on every rank.

    section (one dtype, one optimizer group)
    | weight ......... | bias .. | weight ............. | bias .. | 0 0 0 |     each tensor starts a cache line
    |<---- slice of worker 0 ---->|<---- slice of worker 1 ---->| ...           slices are equal, in whole blocks

[Note: blocks]
A sum over a slice would depend on where slices end, and so on the number of workers. What must be summed over
elements (the gradient's norm) is summed per block of BLOCK elements, counted from the section's start, and then over
blocks in order. Slices end between blocks. The padding at the end is zeros, and adds nothing.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

ALIGN = 16
BLOCK = 1024


@dataclass(frozen=True)
class Slot:
    """One tensor's place."""

    index: int
    """Which tensor, by its position in the list that was laid out."""
    start: int
    """First element in the section."""
    shape: tuple[int, ...]
    """Its shape."""

    @property
    def stop(self) -> int:
        """One past the last element."""
        return self.start + math.prod(self.shape)


@dataclass(frozen=True)
class Section:
    """Tensors that share a dtype and an optimizer group, one after another."""

    key: Hashable
    """What they share."""
    slots: tuple[Slot, ...]
    """In the order of the list."""
    numel: int
    """Length, padding included; a multiple of workers times BLOCK."""

    def part(self, workers: int, rank: int) -> range:
        """Return the elements that one worker owns."""
        length = self.numel // workers
        return range(rank * length, (rank + 1) * length)


def lay_out(shapes: Sequence[tuple[int, ...]], keys: Sequence[Hashable], workers: int) -> list[Section]:
    """Place every tensor; tensors with the same key share a section, sections come in order of first use."""
    sections = []
    for key in dict.fromkeys(keys):
        slots, end = [], 0
        for index, (shape, own) in enumerate(zip(shapes, keys, strict=True)):
            if own == key:
                slot = Slot(index, end, tuple(shape))
                slots.append(slot)
                end = -(-slot.stop // ALIGN) * ALIGN
        unit = workers * BLOCK
        sections.append(Section(key, tuple(slots), max(1, -(-end // unit)) * unit))
    return sections


def windows(slots: Sequence[Slot], limit: int) -> list[tuple[Slot, ...]]:
    """Cut a section's tensors into runs of at most `limit` elements; a larger tensor is a run by itself."""
    runs: list[list[Slot]] = []
    for slot in slots:
        if runs and slot.stop - runs[-1][0].start <= limit:
            runs[-1].append(slot)
        else:
            runs.append([slot])
    return [tuple(run) for run in runs]
