"""Ragged: many tensors of different shapes, held once per host, read as views, pickled as a handle."""

from __future__ import annotations

import itertools
import operator
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset

from lockstep.data.batch import check_how
from lockstep.data.field_values import open_field
from lockstep.data.mapping import CHUNK, RaggedMapping, attach, open_file, seal
from lockstep.data.ragged_format import HEADER_BYTES, NO_HASH, pack_header
from lockstep.data.ragged_tables import check_fields, check_tables
from lockstep.data.ragged_writer import RaggedWriter
from lockstep.data.target import Target, new_file
from lockstep.errors import BadInput


class Ragged(Dataset[Any]):
    """Items of different shape in one mapping: tensors, arrays, numbers, str, bytes, or tuples or dicts of them.

        data = Ragged(tensors)                   # in memory; other processes map the same pages
        data = Ragged.write(path, generator)     # streamed to a file, then mapped
        data = Ragged.open(path)
        data[3]                                  # a view; data[2:9], data[[5, 1]], data[mask]: lists of views
        data.gather([5, 1], "padded")            # one batch

    It is a torch Dataset. A write to a view changes only this process's copy of that page.
    `gather` and `collate` make batches as set by `batched`; by default packed.
    """

    def __init__(self, items: Iterable[Any] = ()) -> None:
        descriptor = os.memfd_create("lockstep-ragged", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            _fill(Target(descriptor, "to memory", in_memory=True), items, folder=None)
        except BaseException:
            os.close(descriptor)
            raise
        self._adopt(seal(descriptor))

    def _adopt(self, mapping: RaggedMapping, how: str = "packed", fill: float = 0.0) -> Ragged:
        where = str(mapping.path or "this memory")
        check_fields(mapping.schema, where)
        self._mapping = mapping
        self._how, self._fill = check_how(how), fill
        self._length = mapping.schema.items
        self._structure = mapping.schema.structure
        self._names = [field.name for field in mapping.schema.fields]
        try:
            self._fields = [open_field(mapping.map, mapping.schema, field, where) for field in mapping.schema.fields]
        except ValueError as error:  # a shape that numpy cannot make, though it holds no element
            raise BadInput(f"{where} is damaged: a field has an impossible shape ({error}); write it again") from error
        self._only = self._fields[0] if self._structure == "value" else None
        return self

    @classmethod
    def write(cls, path: str | os.PathLike[str], items: Iterable[Any], *, hashed: bool = True) -> Ragged:
        """Write items to a file one by one, and open it; `hashed` stores the hash that `open(verify=True)` compares."""
        absolute = Path(path).absolute()
        with new_file(absolute, hashed=hashed) as target:
            _fill(target, items, folder=str(absolute.parent))
        return cls.open(absolute)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, verify: bool = False) -> Ragged:
        """Map a file; header, schema and tables are always checked, the hash of its bytes only with `verify`."""
        mapping = open_file(Path(path))
        if verify:
            mapping.verify()
        opened = cls.__new__(cls)._adopt(mapping)
        check_tables(mapping.map, mapping.schema, str(path))
        return opened

    def save(self, path: str | os.PathLike[str], *, hashed: bool = True) -> None:
        """Write the data as this process sees it to a file; the file gets its name when it is complete."""
        body = memoryview(self._mapping.map)[HEADER_BYTES:]
        with new_file(Path(path), hashed=hashed) as target:
            target.skip(HEADER_BYTES)
            for start in range(0, len(body), CHUNK):
                chunk = body[start : start + CHUNK]
                target.write([chunk], len(chunk))
            header = replace(self._mapping.header, token=secrets.token_bytes(16), sha256=target.sha256 or NO_HASH)
            target.write_front(pack_header(header))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        """Return one item as a view; for a slice, a list of indices or a mask return a list of views."""
        if type(index) is int and 0 <= index < self._length:  # what wrapping datasets and samplers ask for, one by one
            return self._only.item(index) if self._only is not None else self._item(index)
        shape = getattr(index, "shape", ())
        if shape or not hasattr(index, "__index__"):  # a one-dimensional tensor with one element is a list
            return self.__getitems__(self._indices(index))
        number = operator.index(index)
        if not -self._length <= number < self._length:
            raise IndexError(f"index {number} is out of range for {self._length} items")
        return self._item(number + self._length if number < 0 else number)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return several items; a stock DataLoader calls this."""
        if self._only is not None and self._only.checks:
            try:
                return self._only.items(indices)
            except IndexError:
                self._checked(indices)  # raises our own message
                raise
        indices = self._checked(indices)
        if self._only is not None:
            return self._only.items(indices)
        parts = [field.items(indices) for field in self._fields]
        if self._structure == "tuple":
            return list(zip(*parts, strict=True))
        return [dict(zip(self._names, item, strict=True)) for item in zip(*parts, strict=True)]

    def __iter__(self) -> Iterator[Any]:
        return map(self._item, range(self._length))

    def __add__(self, other: Any) -> Ragged:  # type: ignore[override]
        """Return a new Ragged with the items of both."""
        if not isinstance(other, Ragged):
            return NotImplemented
        return Ragged(itertools.chain(self, other))

    def gather(self, indices: Any, how: str | None = None) -> Any:
        """Return one batch of these items; a field whose items all have the same shape becomes a dense tensor."""
        chosen = self._checked(self._indices(indices))
        layout = self._how if how is None else check_how(how)
        if layout == "list" or not chosen:
            return self.__getitems__(chosen)
        return self._assemble([field.gather(chosen, layout, self._fill) for field in self._fields])

    def collate(self, items: Sequence[Any]) -> Any:
        """Return one batch of items that were read before: the `collate_fn` for a stock DataLoader."""
        if self._how == "list" or not items:
            return list(items)
        keys = [None] if self._only else self._names if self._structure == "dict" else range(len(self._fields))
        parts = [list(items) if key is None else [item[key] for item in items] for key in keys]
        joined = zip(self._fields, parts, strict=True)
        return self._assemble([field.join(part, self._how, self._fill) for field, part in joined])

    def batched(self, how: str, *, fill: float = 0.0) -> Ragged:
        """Return the same data with another kind of batches: packed, padded, nested or list."""
        return Ragged.__new__(Ragged)._adopt(self._mapping, how, fill)

    def __reduce__(self) -> tuple[Any, ...]:
        # a handle, not the data: see lockstep.data.mapping
        return _attach, (*self._mapping.handle(), self._how, self._fill)

    def __repr__(self) -> str:
        size = self._mapping.header.size / 2**20
        return f"<Ragged of {self._length} items, {size:.1f} MiB, in {self._mapping.path or 'memory'}>"

    def _item(self, index: int) -> Any:
        if self._only is not None:
            return self._only.item(index)
        return self._assemble([field.item(index) for field in self._fields])

    def _assemble(self, parts: list[Any]) -> Any:
        if self._structure == "dict":
            return dict(zip(self._names, parts, strict=True))
        return tuple(parts) if self._structure == "tuple" else parts[0]

    def _indices(self, chosen: Any) -> Sequence[int]:
        """Return a slice, a list of numbers or a mask as numbers."""
        if isinstance(chosen, slice):
            return range(*chosen.indices(self._length))
        if isinstance(chosen, range):
            return chosen
        numbers = chosen.numpy(force=True) if isinstance(chosen, Tensor) else np.asarray(chosen)
        if numbers.dtype == np.bool_:
            if numbers.shape != (self._length,):
                raise IndexError(f"found a mask of shape {numbers.shape}, expected ({self._length},)")
            numbers = np.flatnonzero(numbers)
        elif numbers.size == 0:
            return []
        elif numbers.ndim != 1 or numbers.dtype.kind not in "iu":
            raise TypeError(f"expected a number, a slice, a list of numbers or a mask as index, found {chosen!r:.60}")
        indices: list[int] = numbers.tolist()
        return indices

    def _checked(self, indices: Sequence[int]) -> Sequence[int]:
        """Return the indices with negative ones counted from the end; raise if one is out of range."""
        if not indices or (min(indices) >= 0 and max(indices) < self._length):
            return indices
        if min(indices) < -self._length or max(indices) >= self._length:
            worst = next(index for index in indices if not -self._length <= index < self._length)
            raise IndexError(f"index {worst} is out of range for {self._length} items")
        return [index + self._length if index < 0 else index for index in indices]


def _attach(where: Any, token: bytes, how: str, fill: float) -> Ragged:
    return Ragged.__new__(Ragged)._adopt(attach(where, token), how, fill)


def _fill(target: Target, items: Iterable[Any], *, folder: str | None) -> None:
    writer = RaggedWriter(target, folder=folder)
    try:
        writer.extend(items)
        writer.finish()
    finally:
        writer.close()
