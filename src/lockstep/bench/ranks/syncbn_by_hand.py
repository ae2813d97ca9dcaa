"""The opponent of `lockstep bench syncbn`: SyncBatchNorm as one writes it by hand, and lets autograd do the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from lockstep.torch_compat.distributed import ALL_GATHER_SINGLE
from lockstep.torch_compat.modules import BatchNorm

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup


class Gather(torch.autograd.Function):
    """An all-gather that autograd can go through; torch.distributed.nn's is deprecated, and takes two scatters back."""

    @staticmethod
    def forward(ctx: Any, row: Tensor, group: ProcessGroup) -> Tensor:
        """Return the rows of all ranks, one below the other."""
        ctx.group = group
        rows = row.new_empty(group.size(), row.numel())
        getattr(dist, ALL_GATHER_SINGLE)(rows.view(-1), row.contiguous(), group)
        return rows

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Return the sum of what all ranks did with this rank's row."""
        grad = grad.contiguous()
        dist.all_reduce(grad, group=ctx.group)
        return grad[ctx.group.rank()], None


class ByHand(BatchNorm):
    """One all-gather of (count, mean, variance) forward, and what autograd makes of it backward."""

    def __init__(self, num_features: int, group: ProcessGroup) -> None:
        super().__init__(num_features)
        self.group = group

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - BatchNorm's name
        """Normalise by the statistics of all ranks."""
        channels = input.shape[1]
        dims = [0, *range(2, input.dim())]
        shape = (1, channels) + (1,) * (input.dim() - 2)
        own_mean = input.mean(dims)
        # torch.var takes ten times as long on the CPU
        own_variance = (input - own_mean.view(shape)).square().mean(dims)
        count = input.new_full((1,), input.numel() / channels)
        rows = Gather.apply(torch.cat((count, own_mean, own_variance)), self.group)  # type: ignore[no-untyped-call]
        counts, means, variances = rows.split((1, channels, channels), dim=1)
        total = counts.sum()
        share = counts / total
        mean = (share * means).sum(0)
        variance = (share * (variances + (means - mean).square())).sum(0)
        self._track(mean.detach(), variance.detach(), total)
        scale = self.weight * torch.rsqrt(variance + self.eps)
        output: Tensor = (input - mean.view(shape)) * scale.view(shape) + self.bias.view(shape)
        return output

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor, total: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        assert self.momentum is not None
        self.num_batches_tracked.add_(1)
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(variance * (total / (total - 1)), self.momentum)
