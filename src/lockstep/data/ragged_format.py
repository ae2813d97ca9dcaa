"""The bytes of a Ragged, in a file or in memory: one header, then regions, then the schema that names them.

    0          header, 128 bytes: magic, version, token, size, where the schema is, checksums
    4096       values of the widest field   |
    ...        values of the others         |  values begin at a page, tables and schema at a multiple of 64
    ...        offsets, shapes by field     |
    ...        schema, JSON                 |  up to the end

A field whose items all have one shape needs no offsets: its values are one dense array. Nothing in it is
pickled, so opening a file runs no code of whoever wrote it.

[Note: values at a page] An item of 4 KiB that begins inside a page lies in two, and reading items in random order
then misses the translation cache twice as often as in a tensor of its own.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

from lockstep.errors import BadInput

MAGIC = b"\x89RAGGED\n"
VERSION = 1
HEADER = 128
ALIGNMENT = 64
PAGE = 4096
NO_HASH = bytes(32)
# magic, version, spare, token, size, schema at, schema length, schema checksum, spare, SHA-256 of all after the header
_FORM = struct.Struct("<8sII16sQQQII32s")
_CHECKSUM = struct.Struct("<I")


@dataclass(frozen=True, kw_only=True)
class Header:
    """The first bytes."""

    token: bytes
    """Drawn for each build: the same token is the same data."""
    size: int
    """Of everything, in bytes."""
    schema_at: int
    """Where the schema begins."""
    schema: bytes
    """The schema, as JSON."""
    sha256: bytes = NO_HASH
    """Over everything after the header; zeros if it was not asked for."""


@dataclass(frozen=True, kw_only=True)
class Region:
    """Where a run of bytes is."""

    at: int
    """First byte."""
    size: int
    """How many."""


@dataclass(frozen=True, kw_only=True)
class Field:
    """One part of every item: what it holds and where it is."""

    name: str
    """Its key in a dict item, its position in a tuple, or empty."""
    kind: str
    """`tensor`, `text` or `bytes`."""
    dtype: str
    """As torch spells it, without `torch.`."""
    shape: tuple[int | None, ...] | None
    """None where it differs between items; None as a whole if even the number of dimensions does."""
    values: Region
    """The elements of all items, one after another."""
    offsets: Region | None
    """First element of each item and the end, int64; None if all items have one shape."""
    shapes: Region | None
    """Shape of each item, int64, missing dimensions -1; None if `shape` and the offsets tell it."""


@dataclass(frozen=True, kw_only=True)
class Schema:
    """What the items are."""

    items: int
    """How many."""
    structure: str
    """`value`, `tuple`, `dict`, or `none` when there is no item to tell."""
    fields: tuple[Field, ...]
    """The parts of an item."""

    def as_json(self) -> bytes:
        """Return it as it is stored."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Schema:
        """Read it back; raises ValueError, KeyError or TypeError for anything else."""
        found = json.loads(data)
        parts = tuple(_field(part) for part in found["fields"])
        return cls(items=int(found["items"]), structure=str(found["structure"]), fields=parts)


def _field(found: dict[str, Any]) -> Field:
    regions = {name: found[name] and Region(**found[name]) for name in ("values", "offsets", "shapes")}
    shape = found["shape"]
    known = {field.name for field in fields(Field)}
    if set(found) != known or regions["values"] is None:
        raise KeyError(f"fields {sorted(found)}")
    return Field(**{**found, **regions, "shape": None if shape is None else tuple(shape)})


def aligned(size: int, to: int = ALIGNMENT) -> int:
    """Return the next multiple of the alignment."""
    return -(-size // to) * to


def pack_header(header: Header) -> bytes:
    """Return the header's bytes."""
    packed = _FORM.pack(
        MAGIC,
        VERSION,
        0,
        header.token,
        header.size,
        header.schema_at,
        len(header.schema),
        zlib.crc32(header.schema),
        0,
        header.sha256,
    )
    return (packed + _CHECKSUM.pack(zlib.crc32(packed))).ljust(HEADER, b"\0")


def read_header(data: memoryview, where: str) -> tuple[Header, Schema]:
    """Check what can be checked without reading the values; say what is wrong and what to do about it."""
    head = bytes(data[:HEADER])
    if head[: len(MAGIC)] != MAGIC:
        raise BadInput(
            f"{where} is not a Ragged: it begins with {head[:8]!r}, not {MAGIC!r}; write one with Ragged.save"
        )
    if len(head) < HEADER:
        raise BadInput(f"{where} was cut off inside its header ({len(head)} of {HEADER} bytes): copy it again")
    _, version, _, token, size, schema_at, length, checksum, _, sha256 = _FORM.unpack_from(head)
    if version != VERSION:
        raise BadInput(
            f"{where} has format version {version}, and this release reads {VERSION}: write it again with this "
            "release, or read it with the one that wrote it"
        )
    if _CHECKSUM.unpack_from(head, _FORM.size)[0] != zlib.crc32(head[: _FORM.size]):
        raise BadInput(f"{where} is damaged: the checksum of its header does not fit; copy it again")
    if len(data) != size:
        why = "it was cut off" if len(data) < size else "something was added to it"
        raise BadInput(f"{where} has {len(data)} bytes, and its header says {size}: {why}; copy it again")
    if not HEADER <= schema_at <= schema_at + length == size:
        raise BadInput(f"{where} is damaged: its schema would lie outside the file; copy it again")
    text = bytes(data[schema_at : schema_at + length])
    if zlib.crc32(text) != checksum:
        raise BadInput(f"{where} is damaged: the checksum of its schema does not fit; copy it again")
    try:
        schema = Schema.from_json(text)
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{where} has a schema that cannot be read ({error!r}): write it again") from error
    _check_regions(schema, schema_at, where)
    return Header(token=token, size=size, schema_at=schema_at, schema=text, sha256=sha256), schema


def _check_regions(schema: Schema, end: int, where: str) -> None:
    for region, size in _regions(schema):
        if region.at % ALIGNMENT or not HEADER <= region.at <= region.at + region.size <= end or region.size != size:
            raise BadInput(
                f"{where} is damaged: a region of {region.size} bytes at {region.at} cannot be; write it again"
            )


def _regions(schema: Schema) -> Iterable[tuple[Region, int]]:
    """Yield each region with the size that it must have; that of values follows from the last offset."""
    for field in schema.fields:
        yield field.values, field.values.size
        if field.offsets is not None:
            yield field.offsets, 8 * (schema.items + 1)
        if field.shapes is not None:
            rank = field.shapes.size // (8 * schema.items) if schema.items else 0
            yield field.shapes, 8 * schema.items * rank
