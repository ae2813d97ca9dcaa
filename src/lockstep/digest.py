"""The digest: SHA-256 over a trained state, the same for the same bits whatever produced them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer


def digest(tensors: Mapping[str, Tensor]) -> str:
    """Return SHA-256 over names, dtypes, shapes and bytes, in name order."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().to("cpu").contiguous()
        total.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def training_state(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Return parameters, buffers and optimizer state under the names of the plain model."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        tensors[f"parameter/{name}"] = parameter
        for key, value in optimizer.state.get(parameter, {}).items():
            if value is not None:
                held = value if isinstance(value, torch.Tensor) else torch.tensor(value)
                tensors[f"optimizer/{name}/{key}"] = held
    for name, buffer in model.named_buffers():
        tensors[f"buffer/{name}"] = buffer
    return tensors
