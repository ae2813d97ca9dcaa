"""Where each tensor lies in a flat buffer: a pure function of shapes, the same on every rank.

    section (one dtype, one optimizer group)
    | weight ......... | bias .. 0 0 | weight ............. | bias .. | 0 0 0 |    each tensor starts at a cache line
    |<---- slice of worker 0 ---->|<---- slice of worker 1 ---->| ...              slices are equal, in whole blocks

[Note: blocks]
A sum over a slice would depend on where slices end, and so on the number of workers. A sum over elements (the
gradient's norm) is therefore computed per block of BLOCK elements, counted within each tensor, and then over all blocks
exactly. So it depends neither on the slices nor on how the model is cut into stages. Slices end between blocks of the
section. They also end between blocks of every tensor, because a tensor of a block or more starts at a block of the
section, and a smaller one lies within one. The gaps are zeros, which add nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

ALIGN = 16
BLOCK = 1024


@dataclass(frozen=True)
class TensorSlot:
    """One tensor's position in a section."""

    index: int
    """Which tensor, by its position in the list passed to `lay_out`."""
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
    """The dtype and optimizer group."""
    slots: tuple[TensorSlot, ...]
    """One for each tensor, in the order of the list."""
    numel: int
    """Length, including padding; a multiple of workers times BLOCK."""

    @property
    def used(self) -> int:
        """Elements up to the end of the last block that has a tensor: the length for one worker."""
        return tensor_blocks(_reach(self.slots[-1])) * BLOCK

    def part(self, workers: int, rank: int) -> range:
        """Return the elements that one worker owns."""
        length = self.numel // workers
        return range(rank * length, (rank + 1) * length)


def lay_out(shapes: Sequence[tuple[int, ...]], keys: Sequence[Hashable], workers: int) -> list[Section]:
    """Assign every tensor to a section; tensors with the same key share one, sections are in order of first use."""
    sections = []
    for key in dict.fromkeys(keys):
        slots, end = [], 0
        for index, (shape, own) in enumerate(zip(shapes, keys, strict=True)):
            if own == key:
                slot = TensorSlot(index, _start(end, math.prod(shape)), tuple(shape))
                slots.append(slot)
                end = slot.stop
        unit = workers * BLOCK
        sections.append(Section(key, tuple(slots), -(-_reach(slots[-1]) // unit) * unit))
    return sections


def slots_within(slots: Sequence[TensorSlot], start: int, stop: int) -> Sequence[TensorSlot]:
    """Return the slots of a section that have elements between two positions, or lie there without any."""
    first = bisect_right(slots, start, key=lambda slot: slot.start)
    while first and (slots[first - 1].stop > start or slots[first - 1].start == start):
        first -= 1
    return slots[first : bisect_left(slots, stop, key=lambda slot: slot.start)]


def tensor_blocks(numel: int) -> int:
    """Return how many blocks a tensor has, see [Note: blocks]."""
    return -(-numel // BLOCK)


def _reach(last: TensorSlot) -> int:
    """Return how far a section reaches: one without elements must lie within it too, so that somebody holds it."""
    return max(last.stop, last.start + 1)


def _start(end: int, numel: int) -> int:
    """Return where a tensor starts after what ends at `end`, see [Note: blocks]."""
    start = -(-end // ALIGN) * ALIGN
    fits = start // BLOCK == (start + max(numel, 1) - 1) // BLOCK
    return start if fits else -(-end // BLOCK) * BLOCK
