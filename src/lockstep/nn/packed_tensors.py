"""Several tensors broadcast in one message, whatever their dtypes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep.torch_compat.tensors import foreach_copy_, keep_versions

ALIGN = 64
CHUNK_BYTES = 32 << 20


class PackedTensors:
    """A buffer for the bytes of tensors of these shapes and dtypes, all on one device; reused in every step."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._like = [(tensor.shape, tensor.dtype) for tensor in tensors]
        sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
        starts = [0]
        for size in sizes:
            starts.append(starts[-1] + -(-size // ALIGN) * ALIGN)
        self._bytes = torch.zeros(starts[-1], dtype=torch.uint8, device=tensors[0].device)
        self._views = [
            self._bytes[start : start + size].view(tensor.dtype).view(tensor.shape)
            for tensor, start, size in zip(tensors, starts, sizes, strict=False)
        ]

    def fits(self, tensors: Sequence[Tensor]) -> bool:
        """Return whether tensors have the shapes and dtypes that the buffer was made for."""
        return [(tensor.shape, tensor.dtype) for tensor in tensors] == self._like

    def broadcast(self, tensors: Sequence[Tensor], source: int, group: dist.ProcessGroup) -> None:
        """Set the tensors to the values that they have on the group's rank `source`."""
        mine = group.rank() == source
        with torch.no_grad():
            if mine:
                foreach_copy_(self._views, list(tensors))
            dist.broadcast(self._bytes, group_src=source, group=group)
            if not mine:
                # They may be changed even if they are saved for a backward that is still to come, as in torch's DDP.
                with keep_versions(tensors):
                    foreach_copy_(list(tensors), self._views)


def broadcast_once(tensors: Sequence[Tensor], source: int, group: dist.ProcessGroup) -> None:
    """Broadcast many tensors, on any devices, in messages of bounded size."""
    chunk: list[Tensor] = []
    size = 0
    for tensor in tensors:
        if chunk and (size + tensor.nbytes > CHUNK_BYTES or tensor.device != chunk[0].device):
            PackedTensors(chunk).broadcast(chunk, source, group)
            chunk, size = [], 0
        chunk.append(tensor)
        size += tensor.nbytes
    if chunk:
        PackedTensors(chunk).broadcast(chunk, source, group)
