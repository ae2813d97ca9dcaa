"""Of tensors and autograd: fused copies, version counters, the end of a backward, operators and their arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._compile import _disable_dynamo as disable_dynamo
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from torch import Tensor

    Tensors = tuple[Tensor, ...] | list[Tensor]

__all__ = [
    "TorchDispatchMode",
    "argument_names",
    "at_end_of_backward",
    "disable_dynamo",
    "foreach_copy_",
    "foreach_mul_",
    "keep_versions",
    "shares_storage",
    "storage_id",
    "version",
]
# disable_dynamo: has torch.compile call a function as it is. torch.compiler.disable imports the compiler, for a second.
# TorchDispatchMode: sees every operator of a thread; documented by torch, in a module with a private name.

foreach_copy_: Callable[[Tensors, Tensors], None] = torch._foreach_copy_
"""Copy many small tensors in one call; torch's optimizers use it."""

foreach_mul_: Callable[[Tensors, float], None] = torch._foreach_mul_
"""Multiply many small tensors by a number in one call."""


def version(tensor: Tensor) -> int:
    """Return how often a tensor was changed in place."""
    return tensor._version


def keep_versions(tensors: Sequence[Tensor]) -> AbstractContextManager[None]:
    """Change tensors without counting it: a backward that saved them will not refuse them."""
    return torch.autograd.grad_mode._unsafe_preserve_version_counter(tuple(tensors))


def at_end_of_backward(call: Callable[[], None]) -> None:
    """Call this when the backward that runs now has computed its last gradient."""
    torch.autograd.Variable._execution_engine.queue_callback(call)


def argument_names(operator: Any) -> list[str]:
    """Return the names of an operator's arguments, in order."""
    return [argument.name for argument in operator._schema.arguments]


def shares_storage(tensor: Tensor) -> bool:
    """Return whether other tensors see a tensor's memory, or the tensor sees a part of some memory."""
    storage = tensor.untyped_storage()
    # the tensor and the Python object made here
    return storage.nbytes() != tensor.nbytes or torch._C._storage_Use_Count(storage._cdata) > 2


def storage_id(tensor: Tensor) -> int:
    """Return a number for the memory that a tensor is a view of; it stays when that memory is resized."""
    return int(tensor.untyped_storage()._cdata)
