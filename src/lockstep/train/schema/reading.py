"""Bytes of a run folder into values of the schema, or a refusal that names file, line and field.

A folder may come from anywhere, so nothing in it is believed: only regular files are opened, at most so many bytes are
read, and every value is decoded strictly.
"""

from __future__ import annotations

import contextlib
import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from lockstep.errors import BadInput
from lockstep.train.records import AGAIN, read_bytes
from lockstep.train.schema.refusal import damaged, refuse, shown
from lockstep.train.schema.scalars import SCHEMA
from lockstep.version import __version__

DOCUMENT_BYTES = 64 << 20
"""A JSON file that is larger is not read."""
LINES_BYTES = 1 << 30
"""A file of lines that is larger is not read."""


class Stamp(msgspec.Struct):
    """What tells the version of a file, whatever else is in it."""

    schema: Any = None
    versions: Any = None


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def read_document(path: Path, kind: Any) -> Any:
    """Read a JSON file as a value of this type, or refuse it."""
    data = read_bytes(path, DOCUMENT_BYTES)
    stamp = _decode(str(path), data, Stamp)
    if stamp.schema != SCHEMA:
        raise BadInput(_other_version(path, stamp))
    document = _decode(str(path), data, kind)
    if wrong := _strange_field(document, _decode(str(path), data, Any)):
        raise damaged(str(path), wrong)
    return document


def read_lines(path: Path, kind: Any) -> list[Any]:
    """Read a file of lines of this type; the last may be cut, because a process may be killed while it writes."""
    data = read_bytes(path, LINES_BYTES)
    lines: list[Any] = []
    start = 0
    while (end := data.find(b"\n", start)) >= 0:  # one by one: a file of empty lines is refused at its first
        lines.append(_decode(f"{path}, line {len(lines) + 1}", data[start:end], kind))
        start = end + 1
    if start < len(data):
        with contextlib.suppress(ValueError, RecursionError):  # half a line
            lines.append(_decoder(kind).decode(data[start:]))
    return lines


def read_lines_from(path: Path, kind: Any, start: int) -> tuple[list[Any], int]:
    """Read the whole lines from a byte on; return them and where the next begin. A file that is not there has none."""
    try:
        with open(path, "rb") as file:
            file.seek(start)
            data = file.read()
    except OSError:
        return [], start
    whole = data[: data.rfind(b"\n") + 1]
    return [_decode(str(path), line, kind) for line in whole.splitlines()], start + len(whole)


def _decode(where: str, data: bytes, kind: Any) -> Any:
    try:
        return _decoder(kind).decode(data)
    except (ValueError, RecursionError) as error:  # msgspec's errors and UnicodeDecodeError are ValueErrors
        raise refuse(where, error, data) from None


def _other_version(path: Path, stamp: Stamp) -> str:
    maker = stamp.versions.get("lockstep") if isinstance(stamp.versions, dict) else None
    writer = f" (Lockstep {maker})" if isinstance(maker, str) and maker.isprintable() else ""
    version = "no schema version" if stamp.schema is None else f"schema version {shown(stamp.schema)}"
    return (
        f"{path} has {version}{writer}, and this is Lockstep {__version__}, which reads schema version {SCHEMA}: use "
        f"the version of Lockstep that wrote it. {AGAIN}"
    )


def _strange_field(value: object, tree: Any, place: str = "") -> str:
    """Say which field of a dataclass is missing or unknown: msgspec would take its default, or ignore it."""
    if dataclasses.is_dataclass(value):
        names = {field.name for field in dataclasses.fields(value)}
        for name in sorted(names.symmetric_difference(tree)):
            return f"{place}{name} is {'missing' if name in names else 'unknown to this version'}"
        inner = [(name, getattr(value, name)) for name in sorted(names)]
    elif isinstance(value, msgspec.Struct) and isinstance(tree, dict):
        inner = [(name, getattr(value, name)) for name in value.__struct_fields__ if name in tree]
    elif isinstance(value, tuple):
        entries = [(f"entry {number + 1}", one, tree[number]) for number, one in enumerate(value)]
        return next(filter(None, (_strange_field(one, part, f"{place}{name}, ") for name, one, part in entries)), "")
    else:
        return ""
    return next(filter(None, (_strange_field(one, tree[name], f"{place}{name}, ") for name, one in inner)), "")
