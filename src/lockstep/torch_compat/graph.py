"""What autograd's graph is made of, as far as torch says it: names of classes and attributes, since torch 2.8."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node, saved_tensors_hooks


def is_written_in_python(node: Node) -> bool:
    """Say whether a node is a `torch.autograd.Function`: a user's, an activation checkpoint, a compiled model."""
    return isinstance(node, BackwardCFunction)


def is_copy_of_slices(node: Node) -> bool:
    """Say whether a node stands for a change of a view in place: it wraps another node, which it changes when run."""
    return type(node).__name__ == "CopySlices"


def leaf_of(node: Node) -> Tensor | None:
    """Return the tensor in which a node adds up gradients; None of another node."""
    leaf: Tensor | None = getattr(node, "variable", None)
    return leaf


class SavedElsewhere:
    """Whether tensors were saved for backward by anything but the graph: activation checkpoints, offloading."""

    def __init__(self) -> None:
        self.seen = False

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Note whether that happens here."""
        entered = saved_tensors_hooks.__enter__

        def enter(hooks: Any) -> Any:
            self.seen = True
            return entered(hooks)

        saved_tensors_hooks.__enter__ = enter  # type: ignore[method-assign]
        try:
            yield
        finally:
            saved_tensors_hooks.__enter__ = entered  # type: ignore[method-assign]
