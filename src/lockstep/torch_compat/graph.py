"""What autograd's graph is made of, as far as torch says it: names of classes and attributes, since torch 2.8.

[Note: gradients by the engine]
`torch.autograd.backward` with gradients compares their shapes by a module of torch that imports sympy: half a second
and 35 MB in every process that gets gradients from another. The engine itself takes them as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node, _engine_run_backward, saved_tensors_hooks


def backward_from(
    roots: Sequence[Tensor | GradientEdge],
    gradients: Sequence[Tensor | None],
    *,
    inputs: Sequence[Tensor] = (),
    retain_graph: bool = False,
) -> None:
    """Run backward from several places, each with its gradient; None: of a loss.

    As `torch.autograd.backward`, for gradients of the right shape, see [Note: gradients by the engine]. With `inputs`,
    only theirs are computed.
    """
    given = tuple(
        torch.ones_like(root, memory_format=torch.preserve_format)
        if gradient is None and isinstance(root, Tensor)
        else gradient
        for root, gradient in zip(roots, gradients, strict=True)
    )
    _engine_run_backward(
        tuple(roots), given, retain_graph, False, tuple(inputs), allow_unreachable=True, accumulate_grad=True
    )


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
