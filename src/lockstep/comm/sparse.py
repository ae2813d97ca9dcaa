"""all_reduce of sparse tensors, such as gradients of embeddings: all parts are gathered and added in tree order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lockstep.comm import collectives as run
from lockstep.comm import rank_tree, tensors
from lockstep.comm.wire import OPS, Call, CollectiveKind
from lockstep.errors import BadInput

if TYPE_CHECKING:
    from lockstep.comm.outboxes import Outboxes
    from lockstep.comm.sync import Deadline


def _gather(outboxes: Outboxes, row: Tensor, deadline: Deadline) -> list[Tensor]:
    """Gather one flat tensor of the same length from every rank."""
    rows = [torch.empty_like(row) for _ in range(outboxes.size)]
    call = Call(CollectiveKind.all_gather, row.numel(), row.dtype)
    run.all_gather(outboxes, tensors.span(row), [tensors.span(t) for t in rows], call, deadline)
    return rows


def _padded(tensor: Tensor, count: int) -> Tensor:
    """Return `count` entries along the first dimension, flat; entries beyond the tensor's own are zero."""
    room = tensor.new_zeros((count, *tensor.shape[1:]))
    room[: tensor.shape[0]] = tensor
    return room.reshape(-1)


def all_reduce(outboxes: Outboxes, tensor: Tensor, op: int, deadline: Deadline) -> None:
    """Add sparse tensors of one shape over all ranks, in place."""
    if OPS[op] != "sum" or tensor.layout is not torch.sparse_coo:
        raise BadInput(
            f"all_reduce of sparse tensors needs sum and torch.sparse_coo, found {OPS[op]} and {tensor.layout}: "
            f"convert the tensor, e.g. with .to_dense()"
        )
    mine = tensor.detach().coalesce()
    counts = [int(t) for t in _gather(outboxes, torch.tensor([mine.values().shape[0]]), deadline)]
    most = max(counts)
    indices, values = mine.indices().t(), mine.values()
    all_indices = _gather(outboxes, _padded(indices, most), deadline)
    all_values = _gather(outboxes, _padded(values, most), deadline)
    parts = [
        torch.sparse_coo_tensor(
            i.view(most, -1)[:count].t(), v.view(most, *values.shape[1:])[:count], tensor.shape, is_coalesced=True
        )
        for i, v, count in zip(all_indices, all_values, counts, strict=True)
    ]
    with torch.no_grad():  # not detach(): the new indices would go to a shallow copy
        tensor.copy_(_sum(parts))


def _sum(parts: list[Tensor]) -> Tensor:
    registers: dict[int, Tensor] = dict(enumerate(parts))
    for to, left, right in rank_tree.plan(len(parts)):
        registers[to] = (registers[left] + registers[right]).coalesce()
    return registers[rank_tree.OUT] if len(parts) > 1 else parts[0]
