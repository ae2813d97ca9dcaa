"""Of torch.nn: the tables of a module, what `torch.compile` makes of it, the base of BatchNorm, and DDP's log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.modules.batchnorm import _LazyNormBase as LazyNorm

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.distributed.algorithms.join import Joinable
    from torch.nn.parallel import DistributedDataParallel

__all__ = [
    "BatchNorm",
    "LazyNorm",
    "OwnBatchNorm",
    "buffers_of",
    "children_of",
    "ddp_log",
    "has_forward_hooks",
    "is_compiled",
    "joins",
    "parameters_of",
    "uncompiled_name",
]
# BatchNorm: what BatchNorm1d, 2d, 3d and SyncBatchNorm derive from. torch DDP refuses nn.SyncBatchNorm on the CPU.
# LazyNorm: a layer that does not know its size before the first batch.


class OwnBatchNorm(BatchNorm):
    """A BatchNorm with its own check of inputs: torch's forward calls a private method, which each kind must have."""

    def check_input(self, input: Tensor) -> None:  # noqa: A002 - torch's name
        """Raise an error for an input of the wrong shape."""

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002
        self.check_input(input)


def parameters_of(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """Return the table of a module's own parameters: a parameter that is replaced is seen there."""
    return module._parameters


def buffers_of(module: nn.Module) -> dict[str, Tensor | None]:
    """Return the table of a module's own buffers, to read and to replace them without the checks of setattr."""
    return module._buffers


def children_of(module: nn.Module) -> dict[str, nn.Module | None]:
    """Return the table of a module's own children; a name may hold None, which `named_children` leaves out."""
    return module._modules


def has_forward_hooks(module: nn.Module) -> bool:
    """Say whether a call of a module is more than its forward."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def is_compiled(model: nn.Module) -> bool:
    """Say whether `torch.compile` wrapped a model or a part of it; known by name, importing the class takes seconds."""
    return any(type(module).__name__ == "OptimizedModule" for module in model.modules())


def uncompiled_name(name: str) -> str:
    """Return the name that a parameter or buffer inside `torch.compile` has without it."""
    return name.replace("_orig_mod.", "")


def joins(module: Joinable) -> bool:
    """Say whether a module runs under torch's `Join` context, for ranks with different numbers of steps."""
    return bool(module._join_config.enable)


def ddp_log(ddp: DistributedDataParallel, *, every_step: bool) -> dict[str, Any]:
    """Return what torch DDP noted of its last step; `every_step` has it note every step to come.

    By default it notes the first ten steps, then one of a hundred.
    """
    if every_step:
        ddp._set_ddp_runtime_logging_sample_rate(1)  # type: ignore[no-untyped-call]
    assert ddp.logger is not None
    ddp.logger.set_runtime_stats_and_log()
    log: dict[str, Any] = ddp._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    return log
