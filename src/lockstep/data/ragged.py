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
from lockstep.data.field_values import open_column
from lockstep.data.mapping import CHUNK, Segment, attach, open_file, seal
from lockstep.data.ragged_format import HEADER, NO_HASH, pack_header
from lockstep.data.target import Target, new_file
from lockstep.data.writer import Writer


class Ragged(Dataset[Any]):
    """Items of different shape in one mapping: tensors, arrays, numbers, str, bytes, or tuples or dicts of them.

        data = Ragged(tensors)                   # in memory; other processes map the same pages
        data = Ragged.write(path, generator)     # streamed to a file, then mapped
        data = Ragged.open(path)
        data[3]                                  # a view; data[2:9], data[[5, 1]], data[mask]: lists of views
        data.gather([5, 1], "padded")            # one batch

    It is a torch Dataset. A write to a view changes this process's copy of that page and nobody else's.
    `gather` and `collate` make batches the way that `batched` says, packed if nothing was said.
    """

    def __init__(self, items: Iterable[Any] = ()) -> None:
        descriptor = os.memfd_create("lockstep-ragged", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            _fill(Target(descriptor, "to memory", in_memory=True), items, folder=None)
        except BaseException:
            os.close(descriptor)
            raise
        self._adopt(seal(descriptor))

    def _adopt(self, segment: Segment, how: str = "packed", fill: float = 0.0) -> Ragged:
        where = str(segment.path or "this memory")
        self._segment = segment
        self._how, self._fill = check_how(how), fill
        self._length = segment.schema.items
        self._structure = segment.schema.structure
        self._names = [field.name for field in segment.schema.fields]
        self._columns = [open_column(segment.map, segment.schema, field, where) for field in segment.schema.fields]
        self._only = self._columns[0] if self._structure == "value" else None
        return self

    @classmethod
    def write(cls, path: str | os.PathLike[str], items: Iterable[Any], *, hashed: bool = True) -> Ragged:
        """Write items to a file as they come, and open it; `hashed` stores what `open(verify=True)` compares."""
        place = Path(path).absolute()
        with new_file(place, hashed=hashed) as target:
            _fill(target, items, folder=str(place.parent))
        return cls.open(place)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, verify: bool = False) -> Ragged:
        """Map a file; magic, version and sizes are always checked, the hash of its bytes if `verify`."""
        segment = open_file(Path(path))
        if verify:
            segment.verify()
        return cls.__new__(cls)._adopt(segment)

    def save(self, path: str | os.PathLike[str], *, hashed: bool = True) -> None:
        """Write what this process sees to a file, under another name first and then moved into place."""
        body = memoryview(self._segment.map)[HEADER:]
        with new_file(Path(path), hashed=hashed) as target:
            target.skip(HEADER)
            for start in range(0, len(body), CHUNK):
                chunk = body[start : start + CHUNK]
                target.write([chunk], len(chunk))
            header = replace(self._segment.header, token=secrets.token_bytes(16), sha256=target.sha256 or NO_HASH)
            target.write_front(pack_header(header))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        """Return one item as a view, or for a slice, a list of indices or a mask the list of such."""
        shape = getattr(index, "shape", ())
        if shape or not hasattr(index, "__index__"):  # a tensor of one number in a row is a list of one
            return self.__getitems__(self._indices(index))
        number = operator.index(index)
        if not -self._length <= number < self._length:
            raise IndexError(f"item {number} of {self._length}")
        return self._item(number + self._length if number < 0 else number)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return several items; a stock DataLoader asks this way."""
        if self._only is not None and self._only.checks:
            try:
                return self._only.items(indices)
            except IndexError:
                self._checked(indices)  # says it in our words
                raise
        indices = self._checked(indices)
        if self._only is not None:
            return self._only.items(indices)
        parts = [column.items(indices) for column in self._columns]
        if self._structure == "tuple":
            return list(zip(*parts, strict=True))
        return [dict(zip(self._names, item, strict=True)) for item in zip(*parts, strict=True)]

    def __iter__(self) -> Iterator[Any]:
        return map(self._item, range(self._length))

    def __add__(self, other: Any) -> Ragged:  # type: ignore[override]
        """Return a new one with the items of both."""
        if not isinstance(other, Ragged):
            return NotImplemented
        return Ragged(itertools.chain(self, other))

    def gather(self, indices: Any, how: str | None = None) -> Any:
        """Return one batch of these items; a field whose items all have one shape becomes a dense tensor."""
        chosen = self._checked(self._indices(indices))
        way = self._how if how is None else check_how(how)
        if way == "list" or not chosen:
            return self.__getitems__(chosen)
        return self._assemble([column.gather(chosen, way, self._fill) for column in self._columns])

    def collate(self, items: Sequence[Any]) -> Any:
        """Return one batch of items that were taken out before: the `collate_fn` for a stock DataLoader."""
        if self._how == "list" or not items:
            return list(items)
        keys = [None] if self._only else self._names if self._structure == "dict" else range(len(self._columns))
        parts = [list(items) if key is None else [item[key] for item in items] for key in keys]
        joined = zip(self._columns, parts, strict=True)
        return self._assemble([column.join(part, self._how, self._fill) for column, part in joined])

    def batched(self, how: str, *, fill: float = 0.0) -> Ragged:
        """Return the same data that makes its batches another way: packed, padded, nested or list."""
        return Ragged.__new__(Ragged)._adopt(self._segment, how, fill)

    def __reduce__(self) -> tuple[Any, ...]:
        # see lockstep.data.mapping: a handle, not the data
        return _attach, (*self._segment.handle(), self._how, self._fill)

    def __repr__(self) -> str:
        size = self._segment.header.size / 2**20
        return f"<Ragged of {self._length} items, {size:.1f} MiB, in {self._segment.path or 'memory'}>"

    def _item(self, index: int) -> Any:
        if self._only is not None:
            return self._only.item(index)
        return self._assemble([column.item(index) for column in self._columns])

    def _assemble(self, parts: list[Any]) -> Any:
        if self._structure == "dict":
            return dict(zip(self._names, parts, strict=True))
        return tuple(parts) if self._structure == "tuple" else parts[0]

    def _indices(self, chosen: Any) -> Sequence[int]:
        """Turn a slice, a list of numbers or a mask into numbers."""
        if isinstance(chosen, slice):
            return range(*chosen.indices(self._length))
        if isinstance(chosen, range):
            return chosen
        found = chosen.numpy(force=True) if isinstance(chosen, Tensor) else np.asarray(chosen)
        if found.dtype == np.bool_:
            if found.shape != (self._length,):
                raise IndexError(f"a mask of shape {found.shape} for {self._length} items")
            found = np.flatnonzero(found)
        elif found.size == 0:
            return []
        elif found.ndim != 1 or found.dtype.kind not in "iu":
            raise TypeError(f"items are chosen by a number, a slice, a list of numbers or a mask, not {chosen!r:.60}")
        indices: list[int] = found.tolist()
        return indices

    def _checked(self, indices: Sequence[int]) -> Sequence[int]:
        """Count negative numbers from the end, and refuse those outside."""
        if not indices or (min(indices) >= 0 and max(indices) < self._length):
            return indices
        if min(indices) < -self._length or max(indices) >= self._length:
            worst = next(index for index in indices if not -self._length <= index < self._length)
            raise IndexError(f"item {worst} of {self._length}")
        return [index + self._length if index < 0 else index for index in indices]


def _attach(where: Any, token: bytes, how: str, fill: float) -> Ragged:
    return Ragged.__new__(Ragged)._adopt(attach(where, token), how, fill)


def _fill(target: Target, items: Iterable[Any], *, folder: str | None) -> None:
    writer = Writer(target, folder=folder)
    try:
        writer.extend(items)
        writer.finish()
    finally:
        writer.close()
