"""The tables of a Ragged file against each other, before any item is read: a file may come from anywhere.

Offsets begin at 0, never fall, and end at the number of values; the shape of every item has as many elements as its
offsets say. Read in parts, so that a large table needs little memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from mmap import mmap
from typing import Any

import numpy as np

from lockstep.data.items import NUMPY, torch_dtype
from lockstep.data.ragged_format import Field, Region, Schema
from lockstep.errors import BadInput

ROWS = 1 << 18
"""Items that are looked at together."""
MOST_DIMENSIONS = 32
"""Of an item; numpy has no more in some versions."""

Numbers = np.ndarray[Any, Any]


def check_fields(schema: Schema, where: str) -> None:
    """Refuse a schema whose fields do not make items."""
    names = [field.name for field in schema.fields]
    counts = {"value": len(names) == 1, "none": not names and not schema.items}
    if len(set(names)) != len(names) or not counts.get(schema.structure, bool(names)):
        raise _damaged(where, f"items that are a {schema.structure} cannot have the fields {names!r:.80}")
    for field in schema.fields:
        if wrong := wrong_field(field):
            raise _damaged(where, f"field {field.name!r:.80} {wrong}")


def wrong_field(field: Field) -> str:
    """Say what is wrong with a field by itself; empty if nothing is."""
    dtype = torch_dtype(field.dtype)
    if dtype not in NUMPY and not (dtype.is_floating_point or dtype.is_complex):
        return f"has dtype {field.dtype}, which no item has"
    if field.kind != "tensor" and (field.dtype != "uint8" or field.shape is None or len(field.shape) != 1):
        return f"is {field.kind} of {field.dtype} and shape {field.shape}, expected bytes in a row"
    if field.shape is not None and len(field.shape) > MOST_DIMENSIONS:
        return f"has {len(field.shape)} dimensions, expected at most {MOST_DIMENSIONS}"
    varying = field.shape is None or None in field.shape
    if varying and field.offsets is None:
        return "has items of different shape and no offsets"
    if field.shapes is not None and field.offsets is None:
        return "has shapes and no offsets"
    if field.shapes is None and field.offsets is not None and (field.shape is None or field.shape.count(None) != 1):
        return "has no shapes, and its offsets do not tell them"
    return ""


def check_tables(mapped: mmap, schema: Schema, where: str) -> None:
    """Refuse offsets and shapes that do not fit each other or the values."""
    for field in schema.fields:
        if field.offsets is None:
            continue
        count = field.values.size // torch_dtype(field.dtype).itemsize
        for first, offsets in _parts(mapped, field.offsets, 1, schema.items + 1, overlap=1):
            lengths = np.diff(offsets)
            if (first == 0 and offsets[0] != 0) or (lengths < 0).any() or offsets.max(initial=0) > count:
                raise _damaged(where, f"the offsets of field {field.name!r:.80} fall, or lead out of its values")
            if field.shapes is None and not _divisible(lengths, field.shape or ()):
                raise _damaged(where, f"an item of field {field.name!r:.80} has too few values for its shape")
            if field.shapes is not None and len(lengths):
                rank = field.shapes.size // (8 * schema.items)
                shapes = _rows(mapped, field.shapes, rank, first, first + len(lengths))
                if not _shapes_fit(shapes, lengths):
                    raise _damaged(where, f"a shape of field {field.name!r:.80} does not fit its number of values")


def _parts(mapped: mmap, region: Region, width: int, rows: int, overlap: int) -> Iterator[tuple[int, Numbers]]:
    """Yield the rows of a table, some at a time, each part with the first row of the next."""
    for first in range(0, max(rows - overlap, 1), ROWS):
        yield first, _rows(mapped, region, width, first, min(rows, first + ROWS + overlap)).reshape(-1)


def _rows(mapped: mmap, region: Region, width: int, first: int, stop: int) -> Numbers:
    count = (stop - first) * width
    return np.frombuffer(mapped, dtype=np.int64, count=count, offset=region.at + 8 * first * width).reshape(
        stop - first, width
    )


def _divisible(lengths: Numbers, shape: tuple[int | None, ...]) -> bool:
    """Say whether the one length that differs follows from the number of values of each item."""
    each = math.prod(size for size in shape if size is not None)
    return not lengths.any() if each == 0 else not (lengths % each).any()


def _shapes_fit(shapes: Numbers, lengths: Numbers) -> bool:
    """Say whether every row is a shape of so many elements; dimensions that an item lacks are -1, and come last."""
    lacking = shapes < 0
    if (shapes < -1).any() or (lacking[:, :-1] & ~lacking[:, 1:]).any():
        return False
    sizes = np.where(lacking, 1, shapes)
    if (sizes.astype(np.float64).prod(axis=1) > 2.0**62).any():  # it would overflow
        return False
    return bool((sizes.prod(axis=1) == lengths).all())


def _damaged(where: str, what: str) -> BadInput:
    return BadInput(f"{where} is damaged: {what}; copy it again, or write it again")
