"""Large arrays that cells hold, such as a data set in memory: written once, and mapped by every worker of a host.

A pickled copy in each worker would cost the data once for each. A mapped file costs it once, in the system's cache; a
worker that writes into such an array gets a copy of that page, and nobody else sees it.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import Any

LEAST = 1 << 20
"""Bytes from which on an array is large."""


class ArrayFiles:
    """The files of one payload; arrays that share memory share a file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._paths: dict[tuple[int, int], str] = {}

    def path(self, start: int, content: memoryview) -> str:
        """Return the file of the memory that begins at an address; `content` is what it holds."""
        key = (start, content.nbytes)
        if key not in self._paths:
            path = self._folder / f"array-{len(self._paths)}.bin"
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(content)
            self._paths[key] = str(path)
        return self._paths[key]


def is_large(value: Any) -> bool:
    """Say whether a value is an array that is better mapped than copied: a plain numpy array, or a plain CPU tensor."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and type(value) is numpy.ndarray:
        return bool(value.nbytes >= LEAST and value.flags.c_contiguous and not value.dtype.hasobject)
    if torch is not None and type(value) is torch.Tensor:
        plain = value.device.type == "cpu" and value.layout is torch.strided and not value.requires_grad
        odd = value.is_quantized, value.is_conj(), value.is_neg(), value.is_nested, value.is_shared(), bool(vars(value))
        plain = plain and not any(odd)
        return bool(plain and value.untyped_storage().nbytes() >= LEAST)
    return False


def reduce_array(array: Any, files: ArrayFiles) -> tuple[Any, tuple[Any, ...]]:
    """Return how a large array is made again: by mapping its file."""
    import numpy as np

    if isinstance(array, np.ndarray):
        content = array.reshape(-1).view(np.uint8)
        path = files.path(content.__array_interface__["data"][0], content.data)
        return map_array, (path, array.dtype, array.shape)
    import torch

    storage = array.untyped_storage()
    whole = torch.empty(0, dtype=torch.uint8).set_(storage)
    path = files.path(storage.data_ptr(), whole.numpy().data)
    place = (array.storage_offset(), tuple(array.shape), array.stride())
    return map_tensor, (path, array.dtype, storage.nbytes(), place)


def map_array(path: str, dtype: Any, shape: tuple[int, ...]) -> Any:
    """Map a numpy array; what is written into it stays in this process."""
    import numpy as np

    return np.frombuffer(_mapped(path), dtype=dtype).reshape(shape)


def map_tensor(path: str, dtype: Any, size: int, place: tuple[int, tuple[int, ...], tuple[int, ...]]) -> Any:
    """Map a tensor; views of one memory are views of one memory again."""
    import torch

    offset, shape, stride = place
    whole = torch.frombuffer(_mapped(path), dtype=torch.uint8)[:size]
    return torch.empty(0, dtype=dtype).set_(whole.untyped_storage(), offset, shape, stride)


@functools.cache
def _mapped(path: str) -> Any:
    import mmap

    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
