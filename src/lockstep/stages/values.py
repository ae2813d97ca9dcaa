"""What passes from stage to stage, as a description and flat tensors: tensors in tuples, lists and dicts, and numbers.

A tensor arrives with the strides that it left with, since some kernels give other bits for another layout. A tensor
that occurs twice arrives as one. Nothing is pickled.

[Note: no cycle]
A function within a function that calls itself refers to itself, and so do the tensors that it knows: they would stay,
with what hangs on them, until Python looks for cycles. So there is none here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import torch
from torch import Tensor

from lockstep.errors import BadInput

SPARSE = 4
"""A view of a tensor that lies spread over so many times its size is packed, in the same order of dimensions."""


class TensorForm(msgspec.Struct, frozen=True, array_like=True):
    """A tensor without its elements."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    trained: bool
    """Whether a gradient comes back for it."""

    @property
    def span(self) -> int:
        """How many elements its memory has, gaps included."""
        if 0 in self.shape:
            return 0
        return 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))

    @property
    def nbytes(self) -> int:
        """How many bytes its memory has."""
        return self.span * self.empty().itemsize

    def empty(self) -> Tensor:
        """Return a tensor of its dtype without elements."""
        return torch.empty(0, dtype=getattr(torch, self.dtype))

    def room(self, device: str) -> Tensor:
        """Return flat memory for it."""
        return torch.empty(self.span, dtype=getattr(torch, self.dtype), device=device)

    def shaped(self, flat: Tensor) -> Tensor:
        """Return the tensor over its memory."""
        return flat.as_strided(self.shape, self.strides)


class ValueNode(msgspec.Struct, frozen=True, array_like=True):
    """A value: a tensor by its number, a number or text, or values within values."""

    kind: str
    content: Any = None


class PassedValue(msgspec.Struct, frozen=True, array_like=True):
    """A value without its tensors' elements."""

    tree: ValueNode
    tensors: tuple[TensorForm, ...]


_SEQUENCES: dict[str, Callable[[Iterable[Any]], Any]] = {"tuple": tuple, "list": list, "Size": torch.Size}


def _encodable(value: float | str) -> bool:
    """Say whether a number or a text can be sent: not an integer of more than 64 bits."""
    return not isinstance(value, int) or -(1 << 63) <= value < 1 << 64


class _Packer:
    """Describes a value, and gathers its tensors. No function within a function: see [Note: no cycle]."""

    def __init__(self, where: str) -> None:
        self._where = where
        self.tensors: list[Tensor] = []
        self._numbers: dict[int, int] = {}

    def node(self, one: Any) -> ValueNode:
        """Describe a value or a part of it."""
        if isinstance(one, Tensor):
            if one.is_sparse or one.is_quantized:
                raise BadInput(f"{self._where} passes a sparse or quantized tensor to the next stage: pass a dense one")
            if id(one) not in self._numbers:
                self._numbers[id(one)] = len(self.tensors)
                self.tensors.append(one)
            return ValueNode("tensor", self._numbers[id(one)])
        if one is None or (isinstance(one, bool | int | float | str) and _encodable(one)):
            return ValueNode("value", one)
        if type(one) in (tuple, list, torch.Size):
            return ValueNode(type(one).__name__, [self.node(each) for each in one])
        if type(one) is dict:
            return ValueNode("dict", [[self._key(key), self.node(each)] for key, each in one.items()])
        raise BadInput(
            f"{self._where} passes a {type(one).__name__} to the next stage, which cannot be sent: pass tensors, or "
            "tuples, lists and dicts of them"
        )

    def _key(self, key: Any) -> str:
        if not isinstance(key, str):
            raise BadInput(
                f"{self._where} passes a dict to the next stage, which cannot be sent: its key {key!r:.60} is no text"
            )
        return key


def pack(value: Any, where: str) -> tuple[PassedValue, list[Tensor]]:
    """Describe a value, and return its tensors; `where` says in messages what passes it."""
    packer = _Packer(where)
    tree = packer.node(value)
    return PassedValue(tree, tuple(form_of(tensor) for tensor in packer.tensors)), packer.tensors


def unpack(packed: PassedValue, tensors: list[Tensor]) -> Any:
    """Return the value, over these tensors."""
    return _value(packed.tree, tensors)


def _value(node: Any, tensors: list[Tensor]) -> Any:
    kind, content = (node.kind, node.content) if isinstance(node, ValueNode) else (node[0], node[1])
    if kind == "tensor":
        return tensors[content]
    if kind == "value":
        return content
    if kind == "dict":
        return {key: _value(each, tensors) for key, each in content}
    return _SEQUENCES[kind](_value(each, tensors) for each in content)


def form_of(tensor: Tensor) -> TensorForm:
    """Describe a tensor as it is sent."""
    form = TensorForm(_name(tensor), tuple(tensor.shape), tuple(tensor.stride()), tensor.requires_grad)
    if form.span <= SPARSE * tensor.numel():
        return form
    strides, following = [0] * tensor.dim(), 1
    for dimension in sorted(range(tensor.dim()), key=lambda one: tensor.stride(one)):
        if tensor.stride(dimension):
            strides[dimension] = following
            following *= tensor.shape[dimension]
    return TensorForm(form.dtype, form.shape, tuple(strides), form.trained)


def flat_elements(tensor: Tensor, form: TensorForm) -> Tensor:
    """Return a tensor's memory as one flat tensor, of the layout that its form says."""
    tensor = tensor.detach()
    if tuple(tensor.stride()) == form.strides and form.span:
        return tensor.as_strided((form.span,), (1,), tensor.storage_offset())
    flat = torch.empty(form.span, dtype=tensor.dtype, device=tensor.device)
    if form.span:
        form.shaped(flat).copy_(tensor) if 0 not in form.strides else _copy_expanded(flat, form, tensor)
    return flat


def summary(packed: PassedValue) -> str:
    """Say in words what passes: dtypes and shapes."""
    return ", ".join(f"{one.dtype} {one.shape}" for one in packed.tensors) or "no tensor"


def _copy_expanded(flat: Tensor, form: TensorForm, tensor: Tensor) -> None:
    """Copy a tensor that repeats its elements along some dimensions: each element once."""
    first = tuple(0 if stride == 0 else slice(None) for stride in form.strides)
    kept = [(size, stride) for size, stride in zip(form.shape, form.strides, strict=True) if stride]
    flat.as_strided([size for size, _ in kept], [stride for _, stride in kept]).copy_(tensor[first])


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
