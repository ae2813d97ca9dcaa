"""Small files of tensors for tests, and hands that know the format well enough to forge one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lockstep.train.checkpoint_file import Draft, Saved
from lockstep.train.tensor_format import HASH_AT, METADATA, NO_HASH, PREFIX, StoredTensor

TABLE = [
    ("parameter/a", "float32", (3, 5)),
    ("buffer/none", "int64", (0, 4)),
    ("buffer/count", "int64", ()),
    ("optimizer/a/step", "bfloat16", ()),
]


def contents(step: int) -> dict[str, bytes]:
    sizes = {name: StoredTensor(name, dtype, shape, 0).nbytes for name, dtype, shape in TABLE}
    return {name: bytes((step + index) % 256 for index in range(size)) for name, size in sizes.items()}


def write(path: Path, step: int) -> Path:
    """Write a small checkpoint."""
    draft = Draft(path, {"step": step}, TABLE)
    for name, data in contents(step).items():
        draft.add(name, data)
    draft.finish()
    return path


def check(saved: Saved, step: int) -> None:
    """Hold that a checkpoint is what `write` wrote."""
    with saved:
        assert saved.header == {"step": step}
        assert {name: bytes(saved.read(name)) for name in saved.tensors} == contents(step)


def header_of(data: bytes) -> dict[str, Any]:
    (length,) = PREFIX.unpack(data[: PREFIX.size])
    header: dict[str, Any] = json.loads(data[PREFIX.size : PREFIX.size + length])
    return header


def sealed(data: bytes) -> bytes:
    """Give bytes the hash that they ask for, as somebody who knows the format can."""
    (length,) = PREFIX.unpack(data[: PREFIX.size])
    begin = PREFIX.size + length
    whole = hashlib.sha256(data[:HASH_AT] + NO_HASH + data[HASH_AT + 64 : begin])
    for name, row in header_of(data).items():
        if name != METADATA:
            start, stop = row["data_offsets"]
            whole.update(hashlib.sha256(data[begin + start : begin + stop]).digest())
    return data[:HASH_AT] + whole.hexdigest().encode() + data[HASH_AT + 64 :]


def with_header(change: Callable[[dict[str, Any]], Any], *, seal: bool = True) -> Callable[[bytes], bytes]:
    """Return a forger that changes the header."""

    def changed(data: bytes) -> bytes:
        (length,) = PREFIX.unpack(data[: PREFIX.size])
        header = header_of(data)
        header = change(header) or header
        text = json.dumps(header, separators=(",", ":")).encode()
        forged = PREFIX.pack(len(text)) + text + data[PREFIX.size + length :]
        return sealed(forged) if seal else forged

    return changed


def with_content(change: Callable[[dict[str, Any]], Any]) -> Callable[[bytes], bytes]:
    """Return a forger that changes what stands under `lockstep` in the metadata."""

    def changed(header: dict[str, Any]) -> None:
        content = json.loads(header[METADATA]["lockstep"])
        header[METADATA]["lockstep"] = json.dumps(change(content) or content)

    return with_header(changed)
