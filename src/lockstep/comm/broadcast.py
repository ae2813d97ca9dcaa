"""Broadcast and all-gather of text and tensors, sent as numbers and bytes, never as pickles."""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

all_gather_single: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""Gathers every rank's tensor into one; the name changed after torch 2.12."""


def broadcast_text(text: str, device: str = "cpu") -> str:
    """Return rank 0's text on every rank."""
    data = torch.tensor(list(text.encode()), dtype=torch.uint8, device=device)
    length = torch.tensor(len(data), device=device)
    dist.broadcast(length, src=0)
    if dist.get_rank() != 0:
        data = torch.empty(int(length), dtype=torch.uint8, device=device)
    if len(data):
        dist.broadcast(data, src=0)
    return bytes(data.tolist()).decode()


def all_gather_text(text: str, device: str = "cpu", group: dist.ProcessGroup | None = None) -> list[str]:
    """Return every rank's text on every rank, in rank order; of a group, or of the whole world."""
    data = torch.tensor(list(text.encode()), dtype=torch.uint8, device=device)
    lengths = [torch.empty((), dtype=torch.int64, device=device) for _ in range(dist.get_world_size(group))]
    dist.all_gather(lengths, torch.tensor(len(data), device=device), group=group)
    longest = max(1, *(int(length) for length in lengths))
    rows = [torch.empty(longest, dtype=torch.uint8, device=device) for _ in lengths]
    dist.all_gather(rows, torch.nn.functional.pad(data, (0, longest - len(data))), group=group)
    return [bytes(row[: int(length)].tolist()).decode() for row, length in zip(rows, lengths, strict=True)]


def broadcast_tensor(value: Tensor, device: str = "cpu") -> Tensor:
    """Return rank 0's tensor on every rank; the others pass a tensor of the same dtype and shape."""
    # Copied, and sent as bytes: backends differ in the dtypes that they support.
    bits = value.detach().to(device).contiguous().flatten().clone()
    if bits.numel():
        dist.broadcast(bits.view(torch.uint8), src=0)
    return bits.view(value.shape)


def broadcast_tensors(tensors: dict[str, Tensor], device: str = "cpu") -> dict[str, Tensor]:
    """Return rank 0's tensors on every rank, by name."""
    mine = {name: [str(value.dtype).removeprefix("torch."), list(value.shape)] for name, value in tensors.items()}
    received: dict[str, Tensor] = {}
    for name, (dtype, shape) in json.loads(broadcast_text(json.dumps(mine), device)).items():
        own = tensors[name] if dist.get_rank() == 0 else torch.empty(shape, dtype=getattr(torch, dtype))
        received[name] = broadcast_tensor(own, device)
    return received
