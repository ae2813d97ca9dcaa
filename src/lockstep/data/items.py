"""What an item may be, and how it is split into fields and their bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lockstep.data.ragged_format import FieldKind, Structure
from lockstep.errors import BadInput

# Dtypes that numpy does not have are stored as integers of the same size and bits.
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


class FieldBytes(NamedTuple):
    """One field of one item, as bytes."""

    kind: FieldKind
    """`tensor`, `text` or `bytes`."""
    dtype: str
    """torch's name."""
    shape: tuple[int, ...]
    """Of the elements."""
    data: Any
    """Contiguous bytes, by the buffer protocol; not a copy if the item was contiguous."""


def take_apart(item: Any) -> tuple[Structure, dict[str, Any]]:
    """Return an item's structure and its fields by name."""
    if isinstance(item, Mapping):
        odd = [key for key in item if not isinstance(key, str)]
        if odd or not item:
            raise BadInput(f"a dict item needs str keys, found {odd[0]!r}" if odd else "a dict item has no fields")
        return "dict", dict(item)
    if isinstance(item, tuple):
        if not item:
            raise BadInput("a tuple item has no fields")
        return "tuple", {str(position): part for position, part in enumerate(item)}
    return "value", {"": item}


def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """Return the numpy dtype with the same bits."""
    return NUMPY.get(dtype) or CARRIERS[dtype.itemsize]


def torch_dtype(name: str) -> torch.dtype:
    """Return the dtype that a schema names."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise BadInput(f"this version of torch has no dtype {name!r}: read the file with the version that wrote it")
    return dtype


def field_bytes(value: Any) -> FieldBytes:
    """Return one field's bytes."""
    if isinstance(value, Tensor):
        return _of_tensor(value)
    if isinstance(value, str):
        data = value.encode("utf-8", "surrogatepass")
        return FieldBytes("text", "uint8", (len(data),), data)
    if isinstance(value, (bytes, bytearray)):
        return FieldBytes("bytes", "uint8", (len(value),), bytes(value))
    if isinstance(value, (np.ndarray, np.generic)):
        return _of_tensor(_from_array(np.asarray(value)))
    if isinstance(value, (bool, int, float)):
        return _of_tensor(_from_number(value))
    raise BadInput(f"it has a {type(value).__name__}; an item must be {ACCEPTED}")


def _of_tensor(value: Tensor) -> FieldBytes:
    if value.layout is not torch.strided or value.is_nested or value.is_quantized:
        raise BadInput("it has a sparse, nested or quantized tensor: convert it to a dense one")
    if value.requires_grad or not value.is_cpu or value.is_conj() or value.is_neg():
        value = value.detach().cpu().resolve_conj().resolve_neg()
    shape = tuple(value.shape)
    if not value.is_contiguous():
        value = value.contiguous()
    dtype = value.dtype
    if dtype not in NUMPY:
        value = value.reshape(-1).view(getattr(torch, CARRIERS[dtype.itemsize].name))
    return FieldBytes("tensor", str(dtype).removeprefix("torch."), shape, value.numpy())


def _from_array(value: np.ndarray[Any, Any]) -> Tensor:
    if not value.dtype.isnative:
        value = value.astype(value.dtype.newbyteorder("="))
    if not value.flags.writeable or any(step < 0 for step in value.strides):
        value = value.copy()  # torch warns of the first and does not support the second
    try:
        return torch.from_numpy(value)
    except TypeError as error:
        raise BadInput(
            f"it has an array of {value.dtype}, which torch does not support: convert it to numbers"
        ) from error


def _from_number(value: Any) -> Tensor:
    if isinstance(value, float):
        return torch.tensor(value, dtype=torch.float64)
    try:
        return torch.tensor(value)
    except (RuntimeError, ValueError, OverflowError) as error:
        raise BadInput(f"the number {value} does not fit in 64 bits: store it as a float or as text") from error
