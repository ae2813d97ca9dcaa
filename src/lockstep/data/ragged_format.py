"""The format of a Ragged, in a file or in memory: a header, then regions, then the schema that describes them.

    0          header, 128 bytes: magic, version, token, size, where the schema is, checksums
    4096       values of the widest field   |
    ...        values of the others         |  values begin at a page, tables and schema at a multiple of 64
    ...        offsets, shapes by field     |
    ...        schema, JSON                 |  up to the end

A field whose items all have the same shape needs no offsets: its values are one dense array. Nothing is pickled, so
opening a file runs no code from it.

[Note: values at a page] An item of 4 KiB that begins inside a page lies in two pages; reading such items in random
order would miss the translation cache twice as often.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import msgspec

from lockstep.errors import BadInput, printable

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Structure = Literal["value", "tuple", "dict", "none"]
FieldKind = Literal["tensor", "text", "bytes"]

MAGIC = b"\x89RAGGED\n"
VERSION = 1
HEADER_BYTES = 128
ALIGNMENT = 64
PAGE = 4096
NO_HASH = bytes(32)
# magic, version, unused, token, size, schema at, schema length, schema checksum, unused, SHA-256 of all behind it
_FORM = struct.Struct("<8sII16sQQQII32s")
_CHECKSUM = struct.Struct("<I")


@dataclass(frozen=True, kw_only=True)
class RaggedHeader:
    """The first bytes."""

    token: bytes
    """Random, drawn for each build: the same token means the same data."""
    size: int
    """Of everything, in bytes."""
    schema_at: int
    """Where the schema begins."""
    schema: bytes
    """The schema, as JSON."""
    sha256: bytes = NO_HASH
    """Of everything after the header; zeros without `hashed`."""


@dataclass(frozen=True, kw_only=True)
class Region:
    """Where a run of bytes is."""

    at: Count
    """First byte."""
    size: Count
    """How many."""


@dataclass(frozen=True, kw_only=True)
class Field:
    """One field of every item: its type and where its values are."""

    name: str
    """Its key in a dict item, its position in a tuple, or empty."""
    kind: FieldKind
    """What an item is."""
    dtype: str
    """torch's name, without `torch.`."""
    shape: tuple[Count | None, ...] | None
    """None for a dimension that differs between items; None as a whole if even the number of dimensions differs."""
    values: Region
    """The elements of all items, one after another."""
    offsets: Region | None
    """First element of each item and the end, int64; None if all items have the same shape."""
    shapes: Region | None
    """Shape of each item, int64, missing dimensions -1; None if it follows from `shape` and the offsets."""


@dataclass(frozen=True, kw_only=True)
class Schema:
    """What the items are."""

    items: Count
    """How many."""
    structure: Structure
    """`value`, `tuple`, `dict`, or `none` if there are no items."""
    fields: tuple[Field, ...]
    """The fields of an item."""

    def as_json(self) -> bytes:
        """Return the schema as it is stored."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Schema:
        """Read a stored schema; raise ValueError or RecursionError for anything else."""
        return msgspec.convert(json.loads(data), cls)


def aligned(size: int, to: int = ALIGNMENT) -> int:
    """Return the next multiple of the alignment."""
    return -(-size // to) * to


def pack_header(header: RaggedHeader) -> bytes:
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
    return (packed + _CHECKSUM.pack(zlib.crc32(packed))).ljust(HEADER_BYTES, b"\0")


def read_header(data: memoryview, where: str) -> tuple[RaggedHeader, Schema]:
    """Return header and schema after all checks that need not read the values; an error says what to do."""
    start = bytes(data[:HEADER_BYTES])
    if start[: len(MAGIC)] != MAGIC:
        raise BadInput(
            f"{where} is not a Ragged: it begins with {start[:8]!r}, expected {MAGIC!r}; write one with Ragged.save"
        )
    if len(start) < HEADER_BYTES:
        raise BadInput(f"{where} was cut off inside its header ({len(start)} of {HEADER_BYTES} bytes): copy it again")
    _, version, _, token, size, schema_at, length, checksum, _, sha256 = _FORM.unpack_from(start)
    if version != VERSION:
        raise BadInput(
            f"{where} has format version {version}, and this release reads version {VERSION}: write it again with this "
            "release, or read it with the release that wrote it"
        )
    if _CHECKSUM.unpack_from(start, _FORM.size)[0] != zlib.crc32(start[: _FORM.size]):
        raise BadInput(f"{where} is damaged: the checksum of its header does not match; copy it again")
    if len(data) != size:
        why = "it was cut off" if len(data) < size else "bytes were added to it"
        raise BadInput(f"{where} has {len(data)} bytes, expected {size} from its header: {why}; copy it again")
    if not HEADER_BYTES <= schema_at <= schema_at + length == size:
        raise BadInput(f"{where} is damaged: its schema lies outside the file; copy it again")
    text = bytes(data[schema_at : schema_at + length])
    if zlib.crc32(text) != checksum:
        raise BadInput(f"{where} is damaged: the checksum of its schema does not match; copy it again")
    try:
        schema = Schema.from_json(text)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise BadInput(f"{where} has a schema that cannot be read ({printable(str(error))}): write it again") from None
    _check_regions(schema, schema_at, where)
    return RaggedHeader(token=token, size=size, schema_at=schema_at, schema=text, sha256=sha256), schema


def _check_regions(schema: Schema, end: int, where: str) -> None:
    for region, size in _regions(schema):
        if (
            region.at % ALIGNMENT
            or not HEADER_BYTES <= region.at <= region.at + region.size <= end
            or region.size != size
        ):
            raise BadInput(
                f"{where} is damaged: a region of {region.size} bytes at {region.at} is impossible; write it again"
            )


def _regions(schema: Schema) -> Iterable[tuple[Region, int]]:
    """Yield each region with its expected size; the size of values is checked later, against the last offset."""
    for field in schema.fields:
        yield field.values, field.values.size
        if field.offsets is not None:
            yield field.offsets, 8 * (schema.items + 1)
        if field.shapes is not None:
            rank = field.shapes.size // (8 * schema.items) if schema.items else 0
            yield field.shapes, 8 * schema.items * rank
