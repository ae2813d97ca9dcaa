"""The safetensors format: a header that says which tensors are in a file and where, then their bytes.

    0    8  length of the header, a little-endian number
    8    .  header: JSON, spaces up to a multiple of 64
              {"__metadata__": {text: text, ...},
               name: {"dtype": "F32", "shape": [3, 5], "data_offsets": [start, stop]}, ...}
    .    .  bytes of the tensors, little-endian, without holes; offsets count from the end of the header

Two entries of the metadata are ours:

    sha256    of everything but itself; it comes first, so it stands at the same place in every file
    lockstep  JSON text: the kind of file, the version of its content, and that content

The package `safetensors` reads these files. It does not write them: its writer takes all tensors at once, and ours come
one after another, from whoever holds them. So the header is made before the first of them; nothing has to be known but
names, dtypes and shapes. Tensors with larger elements lie first, so that each begins at a multiple of its element's
size; the header names them in the order in which they were given.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from lockstep.errors import BadInput

PREFIX = struct.Struct("<Q")
ALIGN = 64
MOST_HEADER = 100_000_000
"""Bytes; readers of the format refuse more."""
MOST_DIMENSIONS = 64
"""Of a tensor; torch has no more."""
MOST_DEPTH = 100
"""Of lists and objects in our content."""
METADATA = "__metadata__"
BEGINS = b'{"__metadata__":{"sha256":"'
"""What every header of ours begins with."""
NO_HASH = b"0" * 64
"""What stands for the hash while it is computed."""
HASH_AT = PREFIX.size + len(BEGINS)
DTYPES = {
    "bool": ("BOOL", 1),
    "int8": ("I8", 1),
    "uint8": ("U8", 1),
    "float8_e4m3fn": ("F8_E4M3", 1),
    "float8_e5m2": ("F8_E5M2", 1),
    "int16": ("I16", 2),
    "uint16": ("U16", 2),
    "float16": ("F16", 2),
    "bfloat16": ("BF16", 2),
    "int32": ("I32", 4),
    "uint32": ("U32", 4),
    "float32": ("F32", 4),
    "int64": ("I64", 8),
    "uint64": ("U64", 8),
    "float64": ("F64", 8),
    "complex64": ("C64", 8),
}
"""By torch's name: the format's name, and the bytes of an element."""
CODES = {code: (name, size) for name, (code, size) in DTYPES.items()}
PAIRS = {"complex128": "float64"}
"""What the format has no name for, and as pairs of what it is stored: with one dimension more, of size 2."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a file."""

    name: str
    """In the file."""
    dtype: str
    """As torch calls it, without `torch.`."""
    shape: tuple[int, ...]
    """Of the tensor."""
    start: int
    """Where its bytes begin, counted from the end of the header."""

    @property
    def nbytes(self) -> int:
        """The length of its bytes."""
        return math.prod(self.shape) * element_bytes(self.dtype)


class Layout(NamedTuple):
    """A header that was read."""

    metadata: dict[str, str]
    """Text by name."""
    tensors: tuple[StoredTensor, ...]
    """In the header's order."""
    nbytes: int
    """Of all tensors."""


def element_bytes(dtype: str) -> int:
    """Return the bytes of an element."""
    return 2 * DTYPES[PAIRS[dtype]][1] if dtype in PAIRS else DTYPES[dtype][1]


def place_tensors(entries: Sequence[tuple[str, str, tuple[int, ...]]]) -> tuple[StoredTensor, ...]:
    """Give every tensor (name, dtype, shape) its place, without holes and aligned; in the order of the entries."""
    tensors: dict[str, StoredTensor] = {}
    for name, dtype, shape in entries:
        if dtype not in DTYPES and dtype not in PAIRS:
            raise BadInput(f"{name} has dtype {dtype}, which a safetensors file cannot hold")
        if name == METADATA or name in tensors:
            raise BadInput(f"the name {name} is taken in a safetensors file: give this tensor another name")
        tensors[name] = StoredTensor(name, dtype, tuple(shape), 0)
    end = 0
    for tensor in sorted(tensors.values(), key=lambda one: -_aligned_to(one.dtype)):
        tensors[tensor.name] = replace(tensor, start=end)
        end += tensor.nbytes
    return tuple(tensors.values())


def make_header(content: Mapping[str, Any], tensors: Sequence[StoredTensor]) -> bytes:
    """Return the beginning of a file, length included, with `NO_HASH` in the place of the hash."""
    paired = {tensor.name: tensor.dtype for tensor in tensors if tensor.dtype in PAIRS}
    ours = _text({**content, **({"dtypes": paired} if paired else {})})
    rows: dict[str, Any] = {METADATA: {"sha256": NO_HASH.decode(), "format": "pt", "lockstep": ours}}
    for tensor in tensors:
        dtype, shape = PAIRS.get(tensor.dtype, tensor.dtype), list(tensor.shape)
        rows[tensor.name] = {
            "dtype": DTYPES[dtype][0],
            "shape": [*shape, 2] if tensor.dtype in PAIRS else shape,
            "data_offsets": [tensor.start, tensor.start + tensor.nbytes],
        }
    text = _text(rows).encode()
    text += b" " * (-(PREFIX.size + len(text)) % ALIGN)
    if len(text) > MOST_HEADER:
        raise BadInput(f"the names and settings take {len(text)} bytes, and a safetensors file has {MOST_HEADER}")
    return PREFIX.pack(len(text)) + text


def read_layout(text: bytes) -> Layout:
    """Return what a header says; raise ValueError for one that the format does not allow."""
    rows = json.loads(text, object_pairs_hook=_no_name_twice)
    if not isinstance(rows, dict):
        raise ValueError("it is no JSON object")
    metadata = rows.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("its metadata is not text")
    tensors = [_stored(name, row) for name, row in rows.items()]
    end = 0
    for tensor in sorted(tensors, key=lambda one: (one.start, one.nbytes)):
        if tensor.start != end:
            raise ValueError(f"{tensor.name!r:.80} does not begin where the tensor before it ends")
        end += tensor.nbytes
    return Layout(metadata, tuple(tensors), end)


def content_of(layout: Layout) -> tuple[dict[str, Any], tuple[StoredTensor, ...]]:
    """Return what we wrote: the content of the metadata, and the tensors as they were; ValueError for anything else."""
    content = json.loads(layout.metadata["lockstep"], object_pairs_hook=_no_name_twice)
    if not isinstance(content, dict):
        raise ValueError("its content is no JSON object")
    if too_deep(content):
        raise ValueError(f"its content is nested deeper than {MOST_DEPTH}")
    paired = content.pop("dtypes", {})
    if not isinstance(paired, dict) or not set(paired.values()) <= set(PAIRS):
        raise ValueError("its dtypes are not known")
    tensors = []
    for tensor in layout.tensors:
        dtype = paired.pop(tensor.name, None)
        if dtype is not None and (tensor.dtype != PAIRS[dtype] or tensor.shape[-1:] != (2,)):
            raise ValueError(f"{tensor.name!r:.80} is no pairs of numbers")
        tensors.append(tensor if dtype is None else replace(tensor, dtype=dtype, shape=tensor.shape[:-1]))
    if paired:
        raise ValueError(f"{next(iter(paired))!r:.80} is not in it")
    return content, tuple(tensors)


def too_deep(value: Any) -> bool:
    """Say whether lists and objects are nested deeper than anything that we write."""
    level = [value]
    for _ in range(MOST_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return True


def _stored(name: str, row: Any) -> StoredTensor:
    if not isinstance(row, dict) or set(row) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"no tensor is like {row!r:.80}")
    code, shape, offsets = row["dtype"], row["shape"], row["data_offsets"]
    lists = isinstance(shape, list) and isinstance(offsets, list) and len(offsets) == 2
    if not isinstance(code, str) or code not in CODES or not lists:
        raise ValueError(f"no tensor is like {row!r:.80}")
    if len(shape) > MOST_DIMENSIONS or any(type(n) is not int or not 0 <= n < 1 << 63 for n in (*shape, *offsets)):
        raise ValueError(f"no tensor is like {row!r:.80}")
    tensor = StoredTensor(name, CODES[code][0], tuple(shape), offsets[0])
    if tensor.start + tensor.nbytes != offsets[1]:
        raise ValueError(f"{name!r:.80} has {offsets[1] - offsets[0]} bytes, and its shape needs {tensor.nbytes}")
    return tensor


def _aligned_to(dtype: str) -> int:
    return DTYPES[PAIRS.get(dtype, dtype)][1]


def _no_name_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    rows = dict(pairs)
    if len(rows) != len(pairs):
        raise ValueError("a name stands in it twice")
    return rows


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
