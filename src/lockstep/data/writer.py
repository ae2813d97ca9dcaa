"""Writing a Ragged item by item, into memory or into a file, without holding the items twice.

1. items come; each field's bytes wait in a short list
2. a full list goes out in one call: the widest field straight into the target, the others into spools
   (files without a name), because how far the first reaches is known only at the end
3. at the end the spools are appended, then offsets and shapes, then the schema
4. the header is written last: whatever is interrupted before has no header and is refused
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

from lockstep.data.block import MOST, Block
from lockstep.data.items import Cell, cell, take_apart, torch_dtype
from lockstep.data.ragged_format import HEADER, NO_HASH, PAGE, Field, Header, Region, Schema, pack_header
from lockstep.data.target import Target
from lockstep.errors import BadInput

PENDING_BYTES = 4 * 2**20
CHUNK = 4 * 2**20


class ColumnWriter:
    """One field of all items: pending bytes, and the shapes seen."""

    def __init__(self, name: str, first: Cell, target: Target, spool: IO[bytes] | None) -> None:
        self.name, self.kind, self.dtype = name, first.kind, first.dtype
        self.itemsize = torch_dtype(first.dtype).itemsize
        self.target, self.spool = target, spool
        self.items = 0
        self._first = first.shape
        self._shapes: array[int] | None = None  # flat; None as long as all are like the first
        self._rank = len(first.shape)
        self._ranks_differ = False
        self._buffers: list[Any] = []
        self._bytes = 0

    def add(self, part: Cell, *, stable: bool) -> None:
        """Take one item's bytes; they are kept by reference only if nobody will change them meanwhile."""
        if part.kind != self.kind or part.dtype != self.dtype:
            raise BadInput(
                f"it holds {_describe(part.kind, part.dtype)}, and the items before it "
                f"{_describe(self.kind, self.dtype)}: convert them to one type"
            )
        if part.shape != self._first or self._shapes is not None:
            self._note(part.shape)
        self.items += 1
        size = part.data.nbytes if isinstance(part.data, np.ndarray) else len(part.data)
        self._buffers.append(part.data if stable or isinstance(part.data, bytes) else part.data.copy())
        self._bytes += size
        if self._bytes >= PENDING_BYTES or len(self._buffers) >= MOST:
            self.flush()

    def add_many(self, block: Block) -> None:
        """Take many items' bytes."""
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
        """Write what is pending."""
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
        """Return the common shape, and the arrays of offsets and of shapes where they are needed."""
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
        told = common.count(None) == 1 and 0 not in others
        return common, offsets, None if told else shapes


class Writer:
    """Takes items, one at a time, and ends with a complete Ragged in the descriptor."""

    def __init__(self, target: Target, *, folder: str | None) -> None:
        self._target = target
        self._folder = folder
        self._columns: dict[str, ColumnWriter] = {}
        self._structure = "none"
        self._items = 0
        target.skip(HEADER)
        target.align(PAGE)  # see [Note: values at a page]

    def extend(self, items: Iterable[Any]) -> None:
        """Take all items of an iterable."""
        if not isinstance(items, (list, tuple)):  # which may fill one buffer again and again
            self._add_each(items, stable=False)
            return
        self._add_each(items[:1], stable=True)  # the first says what a block must be like
        for start in range(1, len(items), MOST):
            part = items[start : start + MOST]
            if not self._add_block(part):
                self._add_each(part, stable=True)

    def _add_block(self, items: Sequence[Any]) -> bool:
        """Take many plain tensors at once; say no if they are anything else, or of another kind than before."""
        column = self._columns[""] if self._structure == "value" else None
        if column is None or column.kind != "tensor":
            return False
        block = Block.of(items, torch_dtype(column.dtype))
        if block is None:
            return False
        column.add_many(block)
        self._items += len(items)
        return True

    def _add_each(self, items: Iterable[Any], *, stable: bool) -> None:
        for item in items:
            try:
                structure, parts = take_apart(item)
                cells = {name: cell(value) for name, value in parts.items()}
                if not self._columns:
                    self._begin(structure, cells)
                if structure != self._structure or cells.keys() != self._columns.keys():
                    raise BadInput(
                        f"it is a {structure} of {_names(cells)}, and the items before it are a {self._structure} of "
                        f"{_names(self._columns)}"
                    )
                for name, part in cells.items():
                    self._columns[name].add(part, stable=stable)
            except BadInput as error:
                raise BadInput(f"item {self._items} cannot be stored: {error}") from error
            self._items += 1

    def _begin(self, structure: str, cells: dict[str, Cell]) -> None:
        self._structure = structure
        widest = max(cells, key=lambda name: memoryview(cells[name].data).nbytes)
        for name, first in cells.items():
            if name == widest:
                self._columns[name] = ColumnWriter(name, first, self._target, None)
            else:
                spool = self._spool()
                target = Target(spool.fileno(), self._target.name, in_memory=self._folder is None)
                self._columns[name] = ColumnWriter(name, first, target, spool)

    def _spool(self) -> IO[bytes]:
        if self._folder is None:
            return open(os.memfd_create("lockstep-spool", os.MFD_CLOEXEC), "w+b", buffering=0)
        return tempfile.TemporaryFile(dir=self._folder, buffering=0)

    def finish(self) -> None:
        """Append what was spooled, the tables and the schema; write the header."""
        for column in self._columns.values():
            column.flush()
        values = {name: self._values(column) for name, column in self._columns.items() if column.spool is None}
        values |= {name: self._values(column) for name, column in self._columns.items() if column.spool}
        fields = tuple(self._field(column, values[name]) for name, column in self._columns.items())
        self._target.align()
        schema = Schema(items=self._items, structure=self._structure, fields=fields).as_json()
        at = self._target.at
        self._target.write([schema], len(schema))
        header = Header(
            token=secrets.token_bytes(16),
            size=self._target.at,
            schema_at=at,
            schema=schema,
            sha256=self._target.sha256 or NO_HASH,
        )
        self._target.write_front(pack_header(header))

    def _values(self, column: ColumnWriter) -> Region:
        if column.spool is None:
            return Region(at=PAGE, size=self._target.at - PAGE)
        self._target.align(PAGE)
        region = Region(at=self._target.at, size=column.target.at)
        column.spool.seek(0)
        while chunk := column.spool.read(CHUNK):
            self._target.write([chunk], len(chunk))
        return region

    def _field(self, column: ColumnWriter, values: Region) -> Field:
        shape, offsets, shapes = column.tables()
        return Field(
            name=column.name,
            kind=column.kind,
            dtype=column.dtype,
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
        """Let go of the spools; harmless after `finish`, needed when it was not reached."""
        for column in self._columns.values():
            if column.spool is not None:
                column.spool.close()


def _describe(kind: str, dtype: str) -> str:
    return f"{dtype} values" if kind == "tensor" else {"text": "a str", "bytes": "bytes"}[kind]


def _names(fields: Iterable[str]) -> str:
    return ", ".join(fields) or "one value"
