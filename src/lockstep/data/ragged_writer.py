"""Writes a Ragged item by item, to memory or to a file, without holding the items twice.

1. Each field's bytes of the items are collected in a short list.
2. A full list is written in one call: the widest field directly to the target, the others to spools (files without a
   name), because the size of the first is known only at the end.
3. At the end the spools are appended, then offsets and shapes, then the schema.
4. The header is written last: a file whose writing was interrupted has no header, and opening it is an error.
"""

from __future__ import annotations

import itertools
import os
import secrets
import tempfile
from array import array
from collections.abc import Iterable, Sequence
from typing import IO, Any

import numpy as np

from lockstep.data.items import FieldBytes, field_bytes, take_apart, torch_dtype
from lockstep.data.ragged_format import (
    HEADER_BYTES,
    NO_HASH,
    PAGE,
    Field,
    RaggedHeader,
    Region,
    Schema,
    Structure,
    pack_header,
)
from lockstep.data.target import Target
from lockstep.data.tensor_block import MAX_TENSORS, TensorBlock
from lockstep.errors import BadInput

PENDING_BYTES = 4 * 2**20
CHUNK = 4 * 2**20


class FieldWriter:
    """Writes one field of all items: its pending bytes, and the shapes so far."""

    def __init__(self, name: str, first: FieldBytes, target: Target, spool: IO[bytes] | None) -> None:
        self.name, self.kind, self.dtype = name, first.kind, first.dtype
        self.itemsize = torch_dtype(first.dtype).itemsize
        self.target, self.spool = target, spool
        self.items = 0
        self._first = first.shape
        self._shapes: array[int] | None = None  # flat; None as long as all shapes equal the first
        self._rank = len(first.shape)
        self._ranks_differ = False
        self._buffers: list[Any] = []
        self._bytes = 0

    def add(self, part: FieldBytes, *, stable: bool) -> None:
        """Add one item's bytes; they are kept by reference only if they are `stable`, else copied."""
        if part.kind != self.kind or part.dtype != self.dtype:
            raise BadInput(
                f"it has {_describe(part.kind, part.dtype)}, expected {_describe(self.kind, self.dtype)} as in the "
                f"items before: convert them to one type"
            )
        if part.shape != self._first or self._shapes is not None:
            self._note(part.shape)
        self.items += 1
        size = part.data.nbytes if isinstance(part.data, np.ndarray) else len(part.data)
        self._buffers.append(part.data if stable or isinstance(part.data, bytes) else part.data.copy())
        self._bytes += size
        if self._bytes >= PENDING_BYTES or len(self._buffers) >= MAX_TENSORS:
            self.flush()

    def add_many(self, block: TensorBlock) -> None:
        """Add the bytes of many items."""
        self.flush()
        shapes = block.shapes
        if self._shapes is not None or set(shapes) != {self._first}:
            self._note(shapes[0])
            self.items += 1
            if self._shapes is not None and set(map(len, shapes)) == {self._rank}:
                self._shapes.extend(itertools.chain.from_iterable(shapes[1:]))
                self.items += len(shapes) - 1
            else:
                for shape in shapes[1:]:
                    self._note(shape)
                    self.items += 1
        else:
            self.items += len(shapes)
        self.target.write_block(block)

    def flush(self) -> None:
        """Write the pending bytes."""
        self.target.write(self._buffers, self._bytes)
        self._buffers, self._bytes = [], 0

    def _note(self, shape: tuple[int, ...]) -> None:
        if self._shapes is None:
            self._shapes = array("q", self._first) * self.items
        if len(shape) != self._rank:
            self._ranks_differ = True
            if len(shape) > self._rank:
                self._widen(len(shape))
            shape = shape + (-1,) * (self._rank - len(shape))
        self._shapes.extend(shape)

    def _widen(self, rank: int) -> None:
        assert self._shapes is not None
        old = np.array(self._shapes, dtype=np.int64).reshape(self.items, self._rank)
        new = np.full((self.items, rank), -1, dtype=np.int64)
        new[:, : self._rank] = old
        self._shapes, self._rank = array("q", new.tobytes()), rank

    def tables(self) -> tuple[tuple[int | None, ...] | None, Any, Any]:
        """Return the common shape, and the arrays of offsets and of shapes if they are needed."""
        if self._shapes is None:
            return self._first, None, None
        shapes = np.frombuffer(self._shapes, dtype=np.int64).reshape(self.items, self._rank)
        offsets = np.zeros(self.items + 1, dtype=np.int64)
        np.cumsum(np.abs(shapes).prod(axis=1), out=offsets[1:])
        if self._ranks_differ:
            return None, offsets, shapes
        same = (shapes == shapes[0]).all(axis=0)
        common = tuple(int(size) if equal else None for size, equal in zip(shapes[0], same, strict=True))
        others = [size for size in common if size is not None]
        known = common.count(None) == 1 and 0 not in others
        return common, offsets, None if known else shapes


class RaggedWriter:
    """Writes items one at a time; after `finish` the target is a complete Ragged."""

    def __init__(self, target: Target, *, folder: str | None) -> None:
        self._target = target
        self._folder = folder
        self._fields: dict[str, FieldWriter] = {}
        self._structure: Structure = "none"
        self._items = 0
        target.skip(HEADER_BYTES)
        target.align(PAGE)  # see [Note: values at a page]

    def extend(self, items: Iterable[Any]) -> None:
        """Add all items of an iterable."""
        if not isinstance(items, (list, tuple)):  # a generator may use one buffer again and again
            self._add_each(items, stable=False)
            return
        self._add_each(items[:1], stable=True)  # the first item sets the dtype of a block
        for start in range(1, len(items), MAX_TENSORS):
            part = items[start : start + MAX_TENSORS]
            if not self._add_block(part):
                self._add_each(part, stable=True)

    def _add_block(self, items: Sequence[Any]) -> bool:
        """Add many plain tensors at once; return False if they are anything else, or of another dtype than before."""
        field = self._fields[""] if self._structure == "value" else None
        if field is None or field.kind != "tensor":
            return False
        block = TensorBlock.of(items, torch_dtype(field.dtype))
        if block is None:
            return False
        field.add_many(block)
        self._items += len(items)
        return True

    def _add_each(self, items: Iterable[Any], *, stable: bool) -> None:
        for item in items:
            try:
                structure, values = take_apart(item)
                parts = {name: field_bytes(value) for name, value in values.items()}
                if not self._fields:
                    self._begin(structure, parts)
                if structure != self._structure or parts.keys() != self._fields.keys():
                    raise BadInput(
                        f"it is a {structure} of {_names(parts)}, expected a {self._structure} of "
                        f"{_names(self._fields)} as in the items before"
                    )
                for name, part in parts.items():
                    self._fields[name].add(part, stable=stable)
            except BadInput as error:
                raise BadInput(f"item {self._items} cannot be stored: {error}") from error
            self._items += 1

    def _begin(self, structure: Structure, parts: dict[str, FieldBytes]) -> None:
        self._structure = structure
        widest = max(parts, key=lambda name: memoryview(parts[name].data).nbytes)
        for name, first in parts.items():
            if name == widest:
                self._fields[name] = FieldWriter(name, first, self._target, None)
            else:
                spool = self._spool()
                target = Target(spool.fileno(), self._target.name, in_memory=self._folder is None)
                self._fields[name] = FieldWriter(name, first, target, spool)

    def _spool(self) -> IO[bytes]:
        if self._folder is None:
            return open(os.memfd_create("lockstep-spool", os.MFD_CLOEXEC), "w+b", buffering=0)
        return tempfile.TemporaryFile(dir=self._folder, buffering=0)

    def finish(self) -> None:
        """Append the spools, the tables and the schema; write the header."""
        for field in self._fields.values():
            field.flush()
        values = {name: self._values(field) for name, field in self._fields.items() if field.spool is None}
        values |= {name: self._values(field) for name, field in self._fields.items() if field.spool}
        fields = tuple(self._field(field, values[name]) for name, field in self._fields.items())
        self._target.align()
        schema = Schema(items=self._items, structure=self._structure, fields=fields).as_json()
        at = self._target.at
        self._target.write([schema], len(schema))
        header = RaggedHeader(
            token=secrets.token_bytes(16),
            size=self._target.at,
            schema_at=at,
            schema=schema,
            sha256=self._target.sha256 or NO_HASH,
        )
        self._target.write_front(pack_header(header))

    def _values(self, field: FieldWriter) -> Region:
        if field.spool is None:
            return Region(at=PAGE, size=self._target.at - PAGE)
        self._target.align(PAGE)
        region = Region(at=self._target.at, size=field.target.at)
        field.spool.seek(0)
        while chunk := field.spool.read(CHUNK):
            self._target.write([chunk], len(chunk))
        return region

    def _field(self, field: FieldWriter, values: Region) -> Field:
        shape, offsets, shapes = field.tables()
        return Field(
            name=field.name,
            kind=field.kind,
            dtype=field.dtype,
            shape=shape,
            values=values,
            offsets=self._table(offsets),
            shapes=self._table(shapes),
        )

    def _table(self, table: Any) -> Region | None:
        if table is None:
            return None
        self._target.align()
        region = Region(at=self._target.at, size=table.nbytes)
        self._target.write([np.ascontiguousarray(table)], table.nbytes)
        return region

    def close(self) -> None:
        """Close the spools; also needed if `finish` was not reached."""
        for field in self._fields.values():
            if field.spool is not None:
                field.spool.close()


def _describe(kind: str, dtype: str) -> str:
    return f"{dtype} values" if kind == "tensor" else {"text": "a str", "bytes": "bytes"}[kind]


def _names(fields: Iterable[str]) -> str:
    return ", ".join(fields) or "one value"
