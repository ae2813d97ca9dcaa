"""A lane's backward in two halves: first what the stage before waits for, later the gradients of the weights.

[Note: halves]
The graph between what a stage received and what it returns is walked once. A node at which a weight joins the way to
what was received (a matrix product, a convolution) keeps the gradient that reaches it in the first half, which computes
nothing for weights; the second half starts from these nodes, and computes nothing else. Both run the nodes that one
backward runs, on the same values, so no bit differs. It is done only where that is certain: not where a weight is used
twice (its gradients would be added in another order), where a node is written in Python (it may count its calls, or
talk to other ranks), or where something other than the graph keeps tensors (activation checkpoints).
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from lockstep.stages.stage_model import Received
from lockstep.torch_compat.graph import backward_from, is_copy_of_slices, is_written_in_python, leaf_of


class WeightNode:
    """A node at which weights join the way to what was received."""

    def __init__(self, node: Node, weights: list[Tensor]) -> None:
        self._node, self.weights = node, weights
        self._gradients: tuple[Tensor | None, ...] | None = None
        self._hook = node.register_prehook(self._gradients_of)

    def _gradients_of(self, came: tuple[Tensor, ...]) -> Any:
        """Keep what comes first; in the second half it comes again, and what hooks of tensors made of it is undone."""
        if self._gradients is None:
            self._gradients = came
            return None
        return self._gradients

    def add_weights(self) -> None:
        """Compute the gradients of the weights."""
        kept = [(index, one) for index, one in enumerate(self._gradients or ()) if one is not None]
        if kept:
            edges = [GradientEdge(self._node, index) for index, _ in kept]
            backward_from(edges, [one for _, one in kept], inputs=self.weights)
        self.forget()

    def forget(self) -> None:
        """Let go of the node and the gradient: each keeps the other alive."""
        self._hook.remove()
        self._gradients = None


class Halves:
    """The backward of one lane."""

    def __init__(self, nodes: list[WeightNode], token: Tensor) -> None:
        self.nodes, self._token = nodes, token

    def first(self, roots: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
        """Compute the gradients of what was received."""
        backward_from(roots, gradients, inputs=[self._token], retain_graph=True)

    def second(self) -> None:
        """Compute the gradients of the weights."""
        for node in self.nodes:
            node.add_weights()


def weights_together(lanes: Sequence[Halves], trained: Sequence[Tensor]) -> bool:
    """Say whether the second halves of lanes can be done node by node: all lanes have the same, with all weights."""
    weights = [[[id(weight) for weight in node.weights] for node in lane.nodes] for lane in lanes]
    every = sorted(weight for node in weights[0] for weight in node)
    return all(one == weights[0] for one in weights) and every == sorted(map(id, trained))


def halves_of(roots: Sequence[Tensor], received: Received) -> Halves | None:
    """Return a lane's backward in two halves; None if it must be done in one, see [Note: halves]."""
    if received.token is None or any(root.grad_fn is None for root in roots):
        return None
    users, start = _walk([root.grad_fn for root in roots], received)
    if start is None:
        return None
    on_the_way = _above(start, users)
    if any(root.grad_fn not in on_the_way for root in roots):
        return None
    joins: list[tuple[Node, list[Tensor]]] = []
    for node in on_the_way:
        weights = _weights_below(node, on_the_way, users)
        if weights is None:
            return None
        if weights:
            joins.append((node, weights))
    return Halves([WeightNode(node, weights) for node, weights in joins], received.token)


def _walk(roots: Sequence[Any], received: Received) -> tuple[dict[Node, list[Node]], Node | None]:
    """Return which nodes use each node, and the start; no start if there is none, or a node that forbids halves."""
    users: dict[Node, list[Node]] = {}
    stack, start = list(dict.fromkeys(roots)), None
    seen = set(stack)
    while stack:
        node = stack.pop()
        if is_written_in_python(node):
            if not received.starts(node):
                return users, None
            start = node
            continue
        if is_copy_of_slices(node):
            return users, None
        for below, _ in node.next_functions:
            if below is None:
                continue
            users.setdefault(below, []).append(node)
            if below not in seen:
                seen.add(below)
                stack.append(below)
    return users, start


def _above(start: Node, users: dict[Node, list[Node]]) -> dict[Node, None]:
    """Return the start and the nodes through which a gradient reaches it, always in the same order."""
    above, stack = {start: None}, [start]
    while stack:
        for node in users.get(stack.pop(), ()):
            if node not in above:
                above[node] = None
                stack.append(node)
    return above


def _weights_below(node: Node, on_the_way: Container[Node], users: dict[Node, list[Node]]) -> list[Tensor] | None:
    """Return the weights that join at a node, each used nowhere else; None if that is not so."""
    weights: list[Tensor] = []
    if is_written_in_python(node):  # the start
        return weights
    stack = [below for below, _ in node.next_functions if below is not None and below not in on_the_way]
    while stack:
        below = stack.pop()
        if len(users[below]) > 1:
            return None
        leaf = leaf_of(below)
        if leaf is not None:
            weights.append(leaf)
        stack += [one for one, _ in below.next_functions if one is not None]
    return weights
