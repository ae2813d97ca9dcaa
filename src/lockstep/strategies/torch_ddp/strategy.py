"""`torch-ddp`: PyTorch's DistributedDataParallel with its best documented settings, for comparison."""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DistributedDataParallel

from lockstep.strategies.base import How, Training
from lockstep.strategies.ddp_timer import DDPTimer
from lockstep.strategies.stock_step import StockStrategy

if TYPE_CHECKING:
    from lockstep.mesh import Mesh
    from lockstep.strategies.clock import Clock


def best_settings() -> dict[str, Any]:
    """Return torch's own options for speed, as far as this version has them.

    `static_graph` is not among them: on these models, which have no unused parameter, it makes no difference.
    """
    known = inspect.signature(DistributedDataParallel).parameters
    return {name: True for name in ("gradient_as_bucket_view", "batched_grad_copy") if name in known}


class TorchDDP(StockStrategy):
    """Gradients as views of the buckets; lanes before the last are accumulated without communication."""

    def __init__(self, mesh: Mesh, training: Training) -> None:
        device = mesh.world.device
        self._ddp = DistributedDataParallel(
            training.model,
            device_ids=None if device == "cpu" else [torch.device(device).index],
            **best_settings(),
        )
        self._timer = DDPTimer(self._ddp)
        super().__init__(mesh, training, self._ddp)

    def how(self) -> How:
        """Return how PyTorch exchanges gradients and updates weights."""
        return How(
            exchange=f"torch DDP over {self.world.backend}", optimizer="replicated: every worker updates its own copy"
        )

    def accumulating(self) -> AbstractContextManager[None]:
        """Return DDP's own context for a backward that reduces nothing."""
        return self._ddp.no_sync()

    def divide_backward(self, clock: Clock) -> None:
        """Tell computation from exchange by DDP's own log."""
        self._timer.divide(clock)

    def prepare_evaluation(self) -> None:
        """Broadcast rank 0's buffers, as DDP itself does before each training forward."""
        self.share_buffers()
