"""Text, bytes and tensors from one rank of a group to all, as numbers and bytes, never as pickles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from lockstep.comm.group import Group


def broadcast_text(text: str, group: Group) -> str:
    """Return the first rank's text on every rank of the group."""
    if group.size == 1:
        return text
    data = _as_tensor(text.encode(), group)
    length = torch.tensor(len(data), device=group.device)
    dist.broadcast(length, group=group.process_group, group_src=0)
    if group.rank != 0:
        data = torch.empty(int(length), dtype=torch.uint8, device=group.device)
    if len(data):
        dist.broadcast(data, group=group.process_group, group_src=0)
    return _as_bytes(data).decode()


def all_gather_text(text: str, group: Group) -> list[str]:
    """Return every rank's text on every rank, in the group's order."""
    return [row.decode() for row in all_gather_bytes(text.encode(), group)]


def all_gather_bytes(content: bytes, group: Group) -> list[bytes]:
    """Return every rank's bytes, of any length, on every rank, in the group's order."""
    if group.size == 1:
        return [content]
    data = _as_tensor(content, group)
    lengths = [torch.empty((), dtype=torch.int64, device=group.device) for _ in group.ranks]
    dist.all_gather(lengths, torch.tensor(len(data), device=group.device), group=group.process_group)
    longest = max(1, *(int(length) for length in lengths))
    rows = [torch.empty(longest, dtype=torch.uint8, device=group.device) for _ in lengths]
    dist.all_gather(rows, torch.nn.functional.pad(data, (0, longest - len(data))), group=group.process_group)
    return [_as_bytes(row[: int(length)]) for row, length in zip(rows, lengths, strict=True)]


def broadcast_tensor(value: Tensor, group: Group) -> Tensor:
    """Return the first rank's tensor on every rank; the others give one of the same dtype and shape."""
    if group.size == 1:
        return value
    # a copy, and as bytes: backends differ in the dtypes they take
    bits = value.detach().to(group.device).contiguous().flatten().clone()
    if bits.numel():
        dist.broadcast(bits.view(torch.uint8), group=group.process_group, group_src=0)
    return bits.view(value.shape)


def _as_tensor(content: bytes, group: Group) -> Tensor:
    if not content:  # torch makes no tensor of an empty buffer
        return torch.empty(0, dtype=torch.uint8, device=group.device)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).to(group.device)


def _as_bytes(data: Tensor) -> bytes:
    return data.cpu().numpy().tobytes()
