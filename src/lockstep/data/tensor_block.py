"""Many plain tensors as one block, by the addresses of their bytes: two numbers for each tensor.

Converting each tensor to an array would take a microsecond and a half, which for items of a few kilobytes is half of
the time that writing their bytes takes.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

MAX_TENSORS = 1000
"""Tensors of a block: fewer than the 1024 buffers that one call of writev accepts."""
_libc = ctypes.CDLL(None, use_errno=True)  # releases the interpreter lock during a call
_libc.writev.restype = ctypes.c_ssize_t
_libc.writev.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int)


class TensorBlock:
    """Contiguous tensors of one dtype in this process's memory; they must not change while the block is used."""

    def __init__(self, tensors: Sequence[Tensor], table: np.ndarray[Any, Any], shapes: list[tuple[int, ...]]) -> None:
        self._tensors = tensors  # keeps the memory of the addresses alive
        self._table = table
        self.shapes = shapes
        self.size = int(table[:, 1].sum())

    @classmethod
    def of(cls, items: Sequence[Any], dtype: torch.dtype) -> TensorBlock | None:
        """Return a block of at most `MAX_TENSORS` items, or None if one of them is not a plain tensor of this dtype."""
        if set(map(type, items)) != {Tensor} or {item.dtype for item in items} != {dtype}:
            return None
        if {item.is_cpu for item in items} != {True}:
            return None
        try:
            if not all(map(Tensor.is_contiguous, items)) or any(map(Tensor.is_neg, items)):
                return None
            if dtype.is_complex and any(map(Tensor.is_conj, items)):
                return None
            shapes = [item.shape for item in items]
            table = np.empty((len(items), 2), dtype=np.uintp)  # an array of iovec: address, bytes
            table[:, 0] = np.fromiter(map(Tensor.data_ptr, items), np.uintp, len(items))
            table[:, 1] = np.fromiter(map(Tensor.numel, items), np.uintp, len(items))
        except RuntimeError:  # sparse or nested: without a shape or without its own memory
            return None
        table[:, 1] *= dtype.itemsize
        return cls(items, table, shapes)

    def writev(self, descriptor: int) -> int:
        """Write the bytes as `os.writev` does; return how many were written."""
        done = int(_libc.writev(descriptor, self._table.ctypes.data, len(self._table)))
        if done >= 0:
            return done
        number = ctypes.get_errno()
        if number == errno.EINTR:
            return 0
        raise OSError(number, os.strerror(number))

    def buffers(self) -> list[memoryview]:
        """Return each tensor's bytes."""
        return [memoryview((ctypes.c_char * size).from_address(at)).cast("B") for at, size in self._table.tolist()]
