"""What an item may be, and how it is taken apart into fields and put together again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lockstep.errors import BadInput

# Types that numpy does not know travel as integers of their size; the bits are the same.
CARRIERS: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.uint8),
    2: np.dtype(np.int16),
    4: np.dtype(np.int32),
    8: np.dtype(np.int64),
}
_PLAIN = (
    torch.bool,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
)
NUMPY: dict[torch.dtype, np.dtype[Any]] = {dtype: np.dtype(str(dtype).removeprefix("torch.")) for dtype in _PLAIN}
ACCEPTED = "a tensor, an array, a number, a str, bytes, or a tuple or dict of these"


class Cell(NamedTuple):
    """One field of one item, as bytes."""

    kind: str
    """`tensor`, `text` or `bytes`."""
    dtype: str
    """As torch spells it."""
    shape: tuple[int, ...]
    """Of the elements."""
    data: Any
    """Contiguous bytes, by the buffer protocol; not a copy if the item was contiguous already."""


def take_apart(item: Any) -> tuple[str, dict[str, Any]]:
    """Return an item's structure and its fields by name."""
    if isinstance(item, Mapping):
        odd = [key for key in item if not isinstance(key, str)]
        if odd or not item:
            raise BadInput(f"a dict item needs text keys, and has {odd[0]!r}" if odd else "a dict item has no fields")
        return "dict", dict(item)
    if isinstance(item, tuple):
        if not item:
            raise BadInput("a tuple item has no fields")
        return "tuple", {str(position): part for position, part in enumerate(item)}
    return "value", {"": item}


def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """Return numpy's type of the same bits."""
    return NUMPY.get(dtype) or CARRIERS[dtype.itemsize]


def torch_dtype(name: str) -> torch.dtype:
    """Return the type that a schema names."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise BadInput(f"this release of torch has no dtype {name!r}: read the file with the one that wrote it")
    return found


def cell(value: Any) -> Cell:
    """Return one field's bytes."""
    if isinstance(value, Tensor):
        return _of_tensor(value)
    if isinstance(value, str):
        data = value.encode("utf-8", "surrogatepass")
        return Cell("text", "uint8", (len(data),), data)
    if isinstance(value, (bytes, bytearray)):
        return Cell("bytes", "uint8", (len(value),), bytes(value))
    if isinstance(value, (np.ndarray, np.generic)):
        return _of_tensor(_from_array(np.asarray(value)))
    if isinstance(value, (bool, int, float)):
        return _of_tensor(_from_number(value))
    raise BadInput(f"it holds a {type(value).__name__}; an item is {ACCEPTED}")


def _of_tensor(value: Tensor) -> Cell:
    if value.layout is not torch.strided or value.is_nested or value.is_quantized:
        raise BadInput("it holds a sparse, nested or quantized tensor: make it dense first")
    if value.requires_grad or not value.is_cpu or value.is_conj() or value.is_neg():
        value = value.detach().cpu().resolve_conj().resolve_neg()
    shape = tuple(value.shape)
    if not value.is_contiguous():
        value = value.contiguous()
    dtype = value.dtype
    if dtype not in NUMPY:
        value = value.reshape(-1).view(getattr(torch, CARRIERS[dtype.itemsize].name))
    return Cell("tensor", str(dtype).removeprefix("torch."), shape, value.numpy())


def _from_array(value: np.ndarray[Any, Any]) -> Tensor:
    if not value.dtype.isnative:
        value = value.astype(value.dtype.newbyteorder("="))
    if not value.flags.writeable or any(step < 0 for step in value.strides):
        value = value.copy()  # torch warns of the first and refuses the second
    try:
        return torch.from_numpy(value)
    except TypeError as error:
        raise BadInput(f"it holds an array of {value.dtype}, which torch does not know: convert it first") from error


def _from_number(value: Any) -> Tensor:
    if isinstance(value, float):
        return torch.tensor(value, dtype=torch.float64)
    try:
        return torch.tensor(value)
    except (RuntimeError, ValueError, OverflowError) as error:
        raise BadInput(f"the number {value} does not fit in 64 bits") from error
