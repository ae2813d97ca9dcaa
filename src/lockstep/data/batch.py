"""How items of different shapes become one batch: packed, padded, nested, or a list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lockstep.errors import BadInput, nearest

HOW = ("packed", "padded", "nested", "list")


class Packed(NamedTuple):
    """Items one after another, without gaps."""

    values: Tensor
    """All rows of all items; flat if more than the first dimension differs."""
    offsets: Tensor
    """Where each item begins in `values`, and the end."""
    shapes: Tensor | None
    """The items' shapes, if they do not follow from the offsets."""


class Padded(NamedTuple):
    """Items as rows of one tensor, short ones padded."""

    values: Tensor
    """One row per item."""
    lengths: Tensor
    """The items' lengths, or their shapes if more than the first dimension differs."""


def check_how(how: str) -> str:
    """Return `how` if it is one of the four kinds of batch; else raise."""
    if how not in HOW:
        raise BadInput(f"unknown kind of batch {how!r}{nearest(how, list(HOW))}")
    return how


def combine(items: Sequence[Tensor], how: str, fill: float, *, leading: bool) -> Packed | Padded | Tensor:
    """Return a batch of one field's tensors; `leading` means that only their first dimension differs."""
    if how == "padded":
        return _padded(items, fill, leading=leading)
    packed = _packed(items, leading=leading)
    if how == "packed":
        return packed
    if not leading:
        raise BadInput("a nested batch needs items that differ only in their first dimension: use packed or padded")
    return torch.nested.nested_tensor_from_jagged(packed.values, packed.offsets)


def _packed(items: Sequence[Tensor], *, leading: bool) -> Packed:
    if leading:
        return Packed(torch.cat(list(items)), _offsets([len(item) for item in items]), None)
    ranks = max(item.dim() for item in items)
    shapes = [(*item.shape, *[-1] * (ranks - item.dim())) for item in items]
    values = torch.cat([item.reshape(-1) for item in items])
    return Packed(values, _offsets([item.numel() for item in items]), torch.tensor(shapes).reshape(len(items), ranks))


def _offsets(lengths: list[int]) -> Tensor:
    offsets = torch.zeros(len(lengths) + 1, dtype=torch.int64)
    torch.cumsum(torch.tensor(lengths), 0, out=offsets[1:])
    return offsets


def _padded(items: Sequence[Tensor], fill: float, *, leading: bool) -> Padded:
    if leading:
        lengths = torch.tensor([len(item) for item in items])
        return Padded(pad_sequence(list(items), batch_first=True, padding_value=fill), lengths)
    if len({item.dim() for item in items}) > 1:
        raise BadInput("items with different numbers of dimensions cannot be padded: use packed or list")
    shapes = torch.tensor([tuple(item.shape) for item in items])
    values = items[0].new_full((len(items), *shapes.amax(0).tolist()), fill)
    for row, item in zip(values, items, strict=True):
        row[tuple(slice(size) for size in item.shape)] = item
    return Padded(values, shapes)
