"""final.ls: the trained parameters and buffers of a small model, so that two runs can be compared to the last bit.

    one line   JSON: {"schema": 1, "tensors": [[name, "<f4" or "<f8", shape, offset], ...]}
    values     little-endian, one tensor after another; offsets count from the end of the line

Numbers only: nothing in it is executed or unpickled. Halves are written as 4 bytes, which changes no value.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lockstep.errors import BadInput
from lockstep.train.records import AGAIN, write_bytes

if TYPE_CHECKING:
    from torch import Tensor, nn

MOST_BYTES = 64 << 20
"""Of a model whose weights are kept."""
SCHEMA = 1
NAME = "final.ls"


def write_weights(folder: Path, model: nn.Module) -> None:
    """Keep a model's floating-point parameters and buffers, unless it is large."""
    named = [*model.named_parameters(), *model.named_buffers()]
    values = {name: _array(tensor) for name, tensor in named if tensor.is_floating_point()}
    if sum(array.nbytes for array in values.values()) > MOST_BYTES:
        return
    table, offset = [], 0
    for name, array in values.items():
        table.append([name, array.dtype.str, list(array.shape), offset])
        offset += array.nbytes
    head = json.dumps({"schema": SCHEMA, "tensors": table}).encode() + b"\n"
    write_bytes(folder / NAME, [head, *(array.tobytes() for array in values.values())])


def read_weights(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Return what `write_weights` wrote, as views of the file; refuse what it did not write."""
    try:
        with open(path, "rb") as file:
            head = json.loads(file.readline())
            start, size = file.tell(), path.stat().st_size
        if head["schema"] != SCHEMA:
            raise BadInput(f"{path} has schema {head['schema']!r}, and this version reads {SCHEMA}. {AGAIN}")
        found = {}
        for name, kind, shape, offset in head["tensors"]:
            if kind not in ("<f4", "<f8") or start + offset + math.prod(shape) * int(kind[2]) > size or offset < 0:
                raise ValueError(f"{name!r:.60} does not fit")
            values = np.memmap(path, kind, "r", start + offset, tuple(shape)) if math.prod(shape) else np.zeros(shape)
            found[str(name)] = values
        return found
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{path} cannot be read: {error}. It was cut or changed after the run. {AGAIN}") from error


def largest_difference(first: Path, other: Path) -> tuple[float, str] | None:
    """Return the largest difference of two runs' values, and in which tensor; None if they cannot be compared.

    `first` and `other` are run folders. A value that is no number on one side only outranks any other difference, and
    is returned as NaN; the same infinity on both sides is no difference.
    """
    paths = [folder / NAME for folder in (first, other)]
    if not all(path.is_file() for path in paths):
        return None
    mine, theirs = (read_weights(path) for path in paths)
    if {name: array.shape for name, array in mine.items()} != {name: array.shape for name, array in theirs.items()}:
        return None
    largest, where = 0.0, ""
    for name, array in mine.items():
        a, b = array.astype(np.float64), theirs[name].astype(np.float64)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        gap = float(np.max(np.abs(np.subtract(a, b, out=np.zeros_like(a), where=~same)), initial=0.0))
        if math.isnan(gap):
            return gap, name
        if gap > largest:
            largest, where = gap, name
    return largest, where


def _array(tensor: Tensor) -> np.ndarray[Any, Any]:
    import torch

    wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    found = tensor.detach().to("cpu", wide).contiguous().numpy()
    return found.astype(found.dtype.newbyteorder("<"), copy=False)
