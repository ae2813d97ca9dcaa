"""`torch-dp`: nn.DataParallel; every lane is scattered over the devices, and gradients are gathered on the first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from lockstep.errors import BadInput
from lockstep.strategies.base import How, Training
from lockstep.strategies.stock_step import StockStrategy
from lockstep.strategies.torch_dp import no_cuda

if TYPE_CHECKING:
    from lockstep.mesh import Mesh
    from lockstep.strategies.limits import Asked


class TorchDP(StockStrategy):
    """One process; the optimizer runs on the first device, from which the weights are copied in every forward.

    nn.DataParallel divides what the loss function gives to `model(...)` over the devices, so the samples of a lane are
    divided, and one lane follows another.
    """

    def __init__(self, mesh: Mesh, training: Training) -> None:
        devices = cuda_devices(mesh.world.device, training.workers)
        super().__init__(mesh, training, nn.DataParallel(training.model, device_ids=devices))

    def how(self) -> How:
        """Return how PyTorch exchanges gradients and updates weights."""
        return How(exchange="nn.DataParallel, gathered on the first device", optimizer="one, on the first device")


def limits(asked: Asked) -> None:
    """Refuse devices that nn.DataParallel does not work on, and SyncBatchNorm, which it does not have."""
    if asked.device is not None:
        cuda_devices(asked.device, asked.settings.workers)
    if asked.settings.sync_batchnorm:
        raise BadInput("--sync-batchnorm: strategy torch-dp has BatchNorm of each device alone; use ddp or torch-ddp")


def cuda_devices(device: str, workers: int) -> list[int]:
    """Return the numbers of the CUDA devices, one per worker; refuse another kind of device, and too few."""
    if torch.device(device).type != "cuda":
        raise BadInput(no_cuda(f"the device is {device}"))
    count = torch.cuda.device_count()
    if workers > count:
        raise BadInput(
            f"strategy torch-dp needs a CUDA device per worker, and there are {count} for {workers} workers: use "
            f"--workers {count}, or torch-ddp"
        )
    return list(range(workers))
