"""The values of one field of a Ragged, read from its mapping: items as views, batches in one gather."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from mmap import mmap
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lockstep.data.batch import combine
from lockstep.data.items import NUMPY, numpy_dtype, torch_dtype
from lockstep.data.ragged_format import Field, Region, Schema
from lockstep.errors import BadInput


class FieldValues(ABC):
    """The values of one field."""

    checks = False
    """Whether `items` itself counts negative indices from the end and raises for those out of range."""

    def __init__(self, field: Field, values: np.ndarray[Any, Any]) -> None:
        self.kind, self._name = field.kind, field.name
        self.dtype = torch_dtype(field.dtype)
        self._carried = self.dtype not in NUMPY
        self._values = values

    @abstractmethod
    def array(self, index: int) -> np.ndarray[Any, Any]:
        """Return one item's elements, in the mapping."""

    def item(self, index: int) -> Any:
        """Return one item: a view; for text and bytes a copy.

        # [Note: storage per item] The tensor is made from this item's bytes alone, never by indexing one tensor over
        # the whole mapping: sending a tensor to another process, or saving it, copies its whole storage.
        """
        part = self.array(index)
        if self.kind == "tensor":
            return torch.from_numpy(part).view(self.dtype) if self._carried else torch.from_numpy(part)
        return self._text(part.tobytes()) if self.kind == "text" else part.tobytes()

    def _text(self, data: bytes) -> str:
        try:
            return data.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise BadInput(
                f"field {self._name!r} has text that is not UTF-8 ({error.reason}): write it again"
            ) from None

    def items(self, indices: Sequence[int]) -> list[Any]:
        """Return several items."""
        return [self.item(index) for index in indices]

    def gather(self, indices: Sequence[int], how: str, fill: float) -> Any:
        """Return the batch of several items."""
        return self.join(self.items(indices), how, fill)

    def join(self, items: Sequence[Any], how: str, fill: float) -> Any:
        """Return the batch of items that were read before."""
        if self.kind != "tensor" or how == "list":
            return list(items)
        return self._combine(items, how, fill)

    @abstractmethod
    def _combine(self, items: Sequence[Tensor], how: str, fill: float) -> Any: ...


class FixedShapeValues(FieldValues):
    """All items have the same shape: a dense array, and as fast as one."""

    checks = True  # numpy does, at no cost

    def __init__(self, field: Field, values: np.ndarray[Any, Any], count: int) -> None:
        assert field.shape is not None
        super().__init__(field, values.reshape(count, *(size or 0 for size in field.shape)))
        self._rows = self.kind == "tensor" and not self._carried and self._values.ndim > 1

    def item(self, index: int) -> Any:
        """Return one row."""
        return torch.from_numpy(self._values[index]) if self._rows else super().item(index)

    def array(self, index: int) -> np.ndarray[Any, Any]:
        """Return one row."""
        part: np.ndarray[Any, Any] = self._values[index, ...]
        return part

    def items(self, indices: Sequence[int]) -> list[Any]:
        """Return several rows, with as little work as possible for each."""
        if self.kind != "tensor" or self._carried:
            return super().items(indices)
        values, view = self._values, torch.from_numpy
        if values.ndim > 1:
            return list(map(view, map(values.__getitem__, indices)))
        return [view(values[index, ...]) for index in indices]  # a row of one number stays an array

    def gather(self, indices: Sequence[int], how: str, fill: float) -> Any:
        """Return the rows as one tensor."""
        if self.kind != "tensor" or how == "list":
            return self.items(indices)
        batch = torch.empty(len(indices), *self._values.shape[1:], dtype=self.dtype)
        carrier = batch.view(getattr(torch, self._values.dtype.name)) if self._carried else batch
        # Half the time of index_select; with "clip" numpy neither checks the indices again nor buffers for that.
        self._values.take(indices, 0, out=carrier.numpy(), mode="clip")
        return batch

    def _combine(self, items: Sequence[Tensor], how: str, fill: float) -> Tensor:
        return torch.stack(list(items))


class VaryingLengthValues(FieldValues):
    """One dimension differs between items and follows from the offsets."""

    def __init__(self, field: Field, values: np.ndarray[Any, Any], offsets: memoryview) -> None:
        super().__init__(field, values)
        assert field.shape is not None
        self._offsets = offsets  # a memoryview: its Python ints are several times faster than numpy's
        self._flat = len(field.shape) == 1
        self._shape = tuple(-1 if size is None else size for size in field.shape)
        self._leading = field.shape[0] is None
        self._runs = self.kind == "tensor" and not self._carried and self._flat

    def item(self, index: int) -> Any:
        """Return one item."""
        if self._runs:
            return torch.from_numpy(self._values[self._offsets[index] : self._offsets[index + 1]])
        return super().item(index)

    def array(self, index: int) -> np.ndarray[Any, Any]:
        """Return one item's run of elements in its shape."""
        part: np.ndarray[Any, Any] = self._values[self._offsets[index] : self._offsets[index + 1]]
        return part if self._flat else part.reshape(self._shape)

    def items(self, indices: Sequence[int]) -> list[Any]:
        """Return several items, with as little work as possible for each."""
        if self.kind != "tensor" or self._carried or not self._flat:
            return super().items(indices)
        values, offsets, view = self._values, self._offsets, torch.from_numpy
        return [view(values[offsets[index] : offsets[index + 1]]) for index in indices]

    def _combine(self, items: Sequence[Tensor], how: str, fill: float) -> Any:
        return combine(items, how, fill, leading=self._leading)


class AnyShapeValues(FieldValues):
    """Several dimensions differ, or even their number: a table holds the shape of each item."""

    def __init__(
        self, field: Field, values: np.ndarray[Any, Any], offsets: memoryview, shapes: np.ndarray[Any, Any]
    ) -> None:
        super().__init__(field, values)
        self._offsets = offsets
        self._shapes = shapes

    def array(self, index: int) -> np.ndarray[Any, Any]:
        """Return one item's run of elements in its shape."""
        shape = [size for size in self._shapes[index].tolist() if size >= 0]
        part: np.ndarray[Any, Any] = self._values[self._offsets[index] : self._offsets[index + 1]].reshape(shape)
        return part

    def _combine(self, items: Sequence[Tensor], how: str, fill: float) -> Any:
        return combine(items, how, fill, leading=False)


def open_field(mapped: mmap, schema: Schema, field: Field, where: str) -> FieldValues:
    """Return the values of a field, after checking the sizes of its regions against each other."""
    dtype = torch_dtype(field.dtype)
    values = np.frombuffer(mapped, dtype=np.uint8, count=field.values.size, offset=field.values.at)
    values = values.view(numpy_dtype(dtype)) if field.values.size % dtype.itemsize == 0 else values[:0]
    if field.offsets is None:
        count = schema.items * math.prod(size or 0 for size in field.shape or ())
        _check(field, where, count * dtype.itemsize, None not in (field.shape or ()))
        return FixedShapeValues(field, values, schema.items)
    offsets = memoryview(mapped)[field.offsets.at : field.offsets.at + field.offsets.size].cast("q")
    _check(field, where, offsets[-1] * dtype.itemsize, offsets[0] == 0)
    if field.shapes is not None:
        return AnyShapeValues(field, values, offsets, _table(mapped, field.shapes, schema.items))
    _check(field, where, field.values.size, field.shape is not None and field.shape.count(None) == 1)
    return VaryingLengthValues(field, values, offsets)


def _table(mapped: mmap, region: Region, items: int) -> np.ndarray[Any, Any]:
    return np.frombuffer(mapped, dtype=np.int64, count=region.size // 8, offset=region.at).reshape(items, -1)


def _check(field: Field, where: str, expected: int, fits: bool) -> None:
    if not fits or field.values.size != expected:
        raise BadInput(
            f"{where} is damaged: field {field.name!r} has {field.values.size} bytes of values, expected {expected} "
            f"from its tables: write it again"
        )
