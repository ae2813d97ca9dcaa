"""SyncBatchNorm: batch normalisation with the statistics of all ranks' samples together.

    forward    1 mean and variance of this rank's samples
               2 one all-gather of (count, mean, variance)                                        row_gather.py
               3 merge them in rank order                                                         batchnorm_math.py
               4 normalise
    backward   5 sums of grad, and of grad * normalised x, over this rank's samples
               6 one all-gather of them
               7 add them up in rank order; the gradient of the input

Besides the output and the gradient of the input it allocates nothing of an activation's size.
"""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.autograd.graph import increment_version

from lockstep.errors import BadInput
from lockstep.nn import batchnorm_math as run
from lockstep.nn.convert import convert, revert
from lockstep.nn.row_gather import RowGather
from lockstep.nn.workspace import EVALUATING, Lease, VectorViews, Workspace
from lockstep.torch_compat.modules import BatchNorm, OwnBatchNorm

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup
    from torch.nn import Module

WARN_AFTER_SECONDS = 30.0


class SyncBatchNorm(OwnBatchNorm):
    """BatchNorm1d, 2d and 3d over the samples of a whole process group, on the CPU and on accelerators.

    Parameters, buffers and state_dict are BatchNorm's. In evaluation mode, and in a group of one rank, it is BatchNorm.
    In training mode all ranks must call it. `group=None` means all ranks.
    """

    @staticmethod
    def convert_sync_batchnorm(module: Module, process_group: ProcessGroup | None = None) -> Module:
        """Replace every BatchNorm of a model, as torch's method of this name; parameters, hooks and mode stay."""
        return convert(module, process_group)

    revert = staticmethod(revert)

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        group: ProcessGroup | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype)
        self.set_up(group)

    def set_up(self, group: ProcessGroup | None, local: type[BatchNorm] | None = None) -> None:
        """Set the attributes that a BatchNorm does not have; `local` is the class before the conversion."""
        self.group = group
        self.local = local
        self.silent = False
        """Whether this rank's samples are left out of the statistics; it still takes part in the all-gather."""
        self._agreed = False
        self._rows: RowGather | None = None
        self._pool: list[Workspace] = []
        self.views = VectorViews()

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - BatchNorm's name
        """Normalise, in training mode with the statistics of all ranks."""
        group = self.group or dist.GroupMember.WORLD
        rows = self._rows
        if rows is None or rows.group is not group:
            if group is None or group.size() == 1:
                return super().forward(input)
            rows = self._rows = RowGather(group)
        self.check_input(input)
        if not self.training:
            if not self._agreed and torch.is_grad_enabled():
                self._agree_on_evaluation(input, rows)
            return super().forward(input)
        output: Tensor = _Normalise.apply(input, self.weight, self.bias, self, rows)  # type: ignore[no-untyped-call]
        return output

    def train(self, mode: bool = True) -> SyncBatchNorm:
        """Set the mode; the next forward compares it with the other ranks'."""
        self._agreed = False
        super().train(mode)
        return self

    def borrow(self, x: Tensor, rows: RowGather) -> Lease:
        """Return a workspace that fits x; see [Note: workspace lifetime]."""
        key = (self.num_features, run.statistics_dtype(x), x.device, rows)
        while self._pool:
            if (space := self._pool.pop()).key == key:
                return Lease(space, self._pool)
        return Lease(Workspace(self.num_features, key[1:3], rows), self._pool)

    def track(self, space: Workspace, samples: int) -> None:
        """Update the running statistics as BatchNorm does: with the unbiased variance."""
        buffers = self._buffers
        mean, variance, batches = buffers["running_mean"], buffers["running_var"], buffers["num_batches_tracked"]
        if mean is None or variance is None or batches is None:
            return
        xp = space.xp
        count = self.views.vector("batches", batches)
        count[()] += 1
        factor = 1.0 / float(count) if self.momentum is None else self.momentum
        news = space.scratch[:2]
        xp.multiply(space.merged[0], factor, out=news[0])
        xp.multiply(space.merged[1], factor * samples / (samples - 1), out=news[1])
        if mean.dtype.itemsize >= 4:
            for name, running, new in zip(("mean", "variance"), (mean, variance), news, strict=True):
                vector = self.views.vector(name, running)
                xp.multiply(vector, 1.0 - factor, out=vector)
                xp.add(vector, new, out=vector)
            increment_version((mean, variance, batches))  # autograd does not see changes that numpy makes
        else:
            for running, new in zip((mean, variance), space.scratch_[:2], strict=True):
                running.mul_(1.0 - factor).add_(new.to(running.dtype))

    def check_input(self, input: Tensor) -> None:  # noqa: A002 - BatchNorm's name
        """Refuse an input without a dimension of this layer's channels."""
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")
        if input.shape[1] != self.num_features:
            # BatchNorm's own message, raised before the other ranks wait.
            raise RuntimeError(f"running_mean should contain {input.shape[1]} elements not {self.num_features}")

    def _agree_on_evaluation(self, x: Tensor, rows: RowGather) -> None:
        """Check that no other rank is in training mode; see [Note: one rank in evaluation mode]."""
        space = self.borrow(x, rows).space
        text = (
            f"{self._label()} on rank {_global(rows, rows.rank)} is in evaluation mode while gradients are recorded, "
            f"and has waited {WARN_AFTER_SECONDS:.0f} s for the other ranks to say whether they are too. To evaluate "
            "on one rank alone, use torch.no_grad()"
        )
        timer = threading.Timer(WARN_AFTER_SECONDS, warnings.warn, (text, RuntimeWarning))
        timer.daemon = True
        timer.start()
        try:
            space.count[0] = EVALUATING
            rows.gather(space.row_, space.whole_)
        finally:
            timer.cancel()
        self.check_modes(space.counts.tolist(), rows)
        self._agreed = True

    def check_modes(self, counts: list[int], rows: RowGather) -> None:
        """Raise, on every rank, if some ranks are in training mode and others in evaluation mode."""
        evaluating = [str(_global(rows, rank)) for rank, count in enumerate(counts) if count == EVALUATING]
        training = [str(_global(rows, rank)) for rank, count in enumerate(counts) if count != EVALUATING]
        if evaluating and training:
            raise BadInput(
                f"{self._label()}: rank {', '.join(evaluating)} is in evaluation mode and rank {', '.join(training)} "
                "in training mode: call model.train() on every rank before the step, or model.eval() on every rank"
            )

    def _label(self) -> str:
        return f"SyncBatchNorm({self.num_features})"

    def __getstate__(self) -> dict[str, Any]:
        of_this_process: dict[str, Any] = {"_rows": None, "_pool": [], "views": VectorViews(), "_agreed": False}
        return {**self.__dict__, **of_this_process}


# [Note: one rank in evaluation mode] The ranks in training mode wait for every rank's row. A rank that is in evaluation
# mode by mistake would send none, and they would wait until the group's timeout. So a layer in evaluation mode also
# sends a row, with the count EVALUATING, if gradients are recorded (as in a training step, but not in an evaluation
# under no_grad): once after each change of its mode, because the ranks then agree. If all ranks evaluate (frozen
# layers), nothing more happens; if only some do, every rank raises the same error. Under no_grad nothing is sent,
# because one rank may evaluate alone there.


def _as(vector: Tensor | None, like: Tensor | None) -> Tensor | None:
    """Return a vector in the precision of another, if both exist."""
    return vector if vector is None or like is None or vector.dtype == like.dtype else vector.to(like.dtype)


def _global(rows: RowGather, rank: int) -> int:
    return dist.get_global_rank(rows.group, rank)


class _Normalise(torch.autograd.Function):
    """The seven steps above."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, layer: SyncBatchNorm, rows: RowGather
    ) -> Tensor:
        ctx.lease, ctx.rows, ctx.silent = layer.borrow(x, rows), rows, layer.silent
        ctx.save_for_backward(x, weight)
        output: Tensor = ctx.lease.space.quiet.run(_forward, ctx, x, weight, bias, layer)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "SyncBatchNorm does not support second derivatives: leave out create_graph=True, or use BatchNorm"
            )
        gradients: tuple[Tensor | None, ...] = ctx.lease.space.quiet.run(_backward, ctx, grad, *ctx.saved_tensors)
        return *gradients, None, None


def _forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, layer: SyncBatchNorm) -> Tensor:
    space: Workspace = ctx.lease.space
    own = x.numel() // layer.num_features
    xp, shift, left = space.xp, space.unit.zero, space.scratch_[0]
    centred = None
    if own and run.channels_contiguous(x):
        shift = torch.empty_like(left)
        centred = run.centre(x, shift, space.unit)
    if own and not ctx.silent:  # 1
        if centred is not None:
            run.centred_statistics(xp, centred, run.vector_of(shift), space.unit, space.own)
        else:
            space.put(*run.statistics(x, left))
    space.count[0] = 0 if ctx.silent else own
    ctx.rows.gather(space.row_, space.whole_)  # 2
    counts = space.counts.tolist()
    if EVALUATING in counts:
        layer.check_modes(counts, ctx.rows)
    ctx.merged = None
    samples = run.merge(xp, counts, space.pairs, space.merged, space.scratch_pairs)  # 3
    if samples == 0:  # all ranks are empty, or run fillers whose output is not used
        return run.normalise(x, None, None, run.GlobalStatistics(*space.unit, layer.eps, 0))
    if samples == 1:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {tuple(x.shape)}")
    ctx.merged = merged = run.GlobalStatistics(space.mean_, space.variance_, layer.eps, samples)
    layer.track(space, samples)
    if own == 0:
        return torch.empty_like(x)
    weight, bias = _as(weight, merged.mean), _as(bias, merged.mean)  # 4
    factor = None if weight is None else layer.views.vector("weight", weight)
    run.factors(xp, space.merged[1], layer.eps, factor, (space.inverse, space.scale))
    if centred is not None:
        return run.normalise_in_place(centred, weight, bias, torch.sub(merged.mean, shift, out=left), merged)
    if x.dtype != merged.mean.dtype:
        return run.normalise(x, weight, bias, merged)
    added = None if bias is None else layer.views.vector("bias", bias)
    run.offset(xp, space.merged[0], space.scale, added, out=space.scratch[0])
    return run.affine(x, space.scale_, left)


def _backward(ctx: Any, grad: Tensor, x: Tensor, weight: Tensor | None) -> tuple[Tensor | None, ...]:
    space, merged = ctx.lease.space, ctx.merged
    if merged is None:
        zeros = torch.zeros_like(weight) if weight is not None else None  # no rank had samples
        return torch.zeros_like(x), zeros, zeros
    counted = x.numel() > 0 and not ctx.silent
    of_input, of_weight, of_bias = ctx.needs_input_grad[:3]
    if counted:  # 5
        plain, with_x = run.gradient_sums(grad, x, _as(weight, merged.mean), merged)
    else:
        plain, with_x = torch.zeros_like(merged.mean), torch.zeros_like(merged.mean)
    grad_input = None
    if of_input:
        space.put(plain, with_x)
        ctx.rows.gather(space.row_, space.whole_)  # 6
        sums = run.add_up(space.xp, space.pairs)  # 7
        grad_input = _input_gradient(grad, x, space, sums, merged) if counted else torch.zeros_like(x)
    return grad_input, _as(with_x, weight) if of_weight else None, _as(plain, weight) if of_bias else None


def _input_gradient(grad: Tensor, x: Tensor, space: Workspace, sums: Any, merged: run.GlobalStatistics) -> Tensor:
    """Do the rest of step 7, in two passes over x if they are as exact as three."""
    xp, mean, (slope, offset, spare) = space.xp, space.merged[0], space.scratch[:3]
    slope_, offset_, spare_ = space.scratch_[:3]
    run.coefficients(xp, space.inverse, space.scale, merged.samples, sums, (slope, offset))
    if (
        run.channels_contiguous(x)
        or x.dtype != merged.mean.dtype
        or not run.means_near_zero(xp, mean, space.inverse, spare)
    ):
        return run.input_gradient(grad, x, merged.mean, (space.scale_, slope_, offset_), space.unit)
    run.offset(xp, mean, slope, offset, out=spare)
    return run.two_pass_input_gradient(grad, x, (space.scale_, slope_, spare_))
