"""How far the final weights of two runs are apart: value by value, a block at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.errors import BadInput
from lockstep.train.records import AGAIN
from lockstep.train.tensor_file import TensorFile
from lockstep.train.tensor_format import element_bytes
from lockstep.train.weights import KIND, NAME

MOST_BYTES = 1 << 30
"""Of a file that is compared: a few seconds of work."""
BLOCK = 1 << 20
"""Elements compared at a time."""
COMPLEX = {"complex64": "<f4", "complex128": "<f8"}
"""Read as pairs."""
FLOATS = {"float64": "<f8", "float32": "<f4", "float16": "<f2", **COMPLEX}
NARROW = ("bfloat16", "float8_e5m2", "float8_e4m3fn")
"""What numpy has no dtype for."""

Array = np.ndarray[Any, Any]


def largest_difference(first: Path, other: Path) -> tuple[float, str] | None:
    """Return the largest difference of two runs' values, and in which tensor; None if they cannot be compared.

    `first` and `other` are run folders. A value that is no number on one side only outranks any other difference, and
    is returned as NaN; the same infinity on both sides is no difference. Integers and truth values are not compared.
    """
    if not all((folder / NAME).is_file() for folder in (first, other)) or too_large(first, other):
        return None
    with _opened(first / NAME) as mine, _opened(other / NAME) as theirs:
        if _shapes(mine) != _shapes(theirs):
            return None
        largest, where = 0.0, ""
        for name in _shapes(mine):
            for a, b in zip(_values(mine, name), _values(theirs, name), strict=True):
                gap = _difference(a, b)
                if math.isnan(gap):
                    return gap, name
                if gap > largest:
                    largest, where = gap, name
    return largest, where


def too_large(first: Path, other: Path) -> bool:
    """Say whether both runs have final weights that are too large to be compared."""
    paths = [folder / NAME for folder in (first, other)]
    return all(path.is_file() for path in paths) and any(path.stat().st_size > MOST_BYTES for path in paths)


def _opened(path: Path) -> TensorFile:
    try:
        return TensorFile(path, KIND, verify=False)
    except BadInput as error:
        raise BadInput(f"{error}. {AGAIN}") from error


def _shapes(file: TensorFile) -> dict[str, tuple[int, ...]]:
    """Return the shapes of what is compared; a complex number is a pair."""
    return {
        name: (*tensor.shape, 2) if tensor.dtype in COMPLEX else tensor.shape
        for name, tensor in file.tensors.items()
        if tensor.dtype in FLOATS or tensor.dtype in NARROW
    }


def _values(file: TensorFile, name: str) -> Iterator[Array]:
    """Yield a tensor's values, a block at a time."""
    dtype = file.tensors[name].dtype
    for block in file.blocks(name, BLOCK * element_bytes(dtype)):
        if dtype in FLOATS:
            yield np.frombuffer(block, FLOATS[dtype]).astype(np.float64)
        elif dtype == "bfloat16":  # the upper half of a float32
            yield (np.frombuffer(block, "<u2").astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        elif dtype == "float8_e5m2":  # the upper half of a float16
            yield (np.frombuffer(block, np.uint8).astype(np.uint16) << 8).view(np.float16).astype(np.float64)
        else:
            yield E4M3FN[np.frombuffer(block, np.uint8)]


def _e4m3fn(code: int) -> float:
    """Return the value of a float8_e4m3fn: a sign, 4 bits of exponent, 3 of fraction, no infinity."""
    sign, exponent, fraction = -1.0 if code & 0x80 else 1.0, code >> 3 & 15, code & 7
    if (exponent, fraction) == (15, 7):
        return math.nan
    return sign * (math.ldexp(8 + fraction, exponent - 10) if exponent else math.ldexp(fraction, -9))


E4M3FN = np.array([_e4m3fn(code) for code in range(256)])


def _difference(a: Array, b: Array) -> float:
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return float(np.max(np.abs(np.subtract(a, b, out=np.zeros_like(a), where=~same)), initial=0.0))
