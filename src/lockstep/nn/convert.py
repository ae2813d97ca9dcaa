"""Conversion from BatchNorm to SyncBatchNorm and back, keeping parameters, buffers, hooks and mode."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from torch import nn

from lockstep.errors import BadInput
from lockstep.torch_compat.modules import BatchNorm, LazyNorm, children_of

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def convert(model: nn.Module, group: ProcessGroup | None = None) -> nn.Module:
    """Replace every BatchNorm of a model by a SyncBatchNorm over the group; None means all ranks.

    The parameters stay the same objects, so an optimizer that was made before keeps working. Returns the model, or its
    replacement if the model itself is a BatchNorm.
    """
    from lockstep.nn.sync_batchnorm import SyncBatchNorm

    def replacement(name: str, layer: nn.Module) -> nn.Module | None:
        if not isinstance(layer, BatchNorm) or isinstance(layer, SyncBatchNorm):
            return None
        if isinstance(layer, LazyNorm):
            raise BadInput(
                f"{name or 'the model'} is a {type(layer).__name__} without a size: run one batch through the model "
                "before converting it"
            )
        if type(layer).forward not in (BatchNorm.forward, nn.SyncBatchNorm.forward):
            raise BadInput(
                f"{name or 'the model'} is a {type(layer).__name__} with its own forward, which SyncBatchNorm "
                "would not run: replace this layer by hand"
            )
        sync = SyncBatchNorm.__new__(SyncBatchNorm)
        sync.__dict__ = dict(layer.__dict__)
        sync.set_up(group, type(layer))
        return sync

    return _replace(model, replacement)


def revert(model: nn.Module) -> nn.Module:
    """Replace every SyncBatchNorm of a model by the BatchNorm that it was converted from."""
    from lockstep.nn.sync_batchnorm import SyncBatchNorm

    def replacement(name: str, layer: nn.Module) -> nn.Module | None:
        if not isinstance(layer, SyncBatchNorm):
            return None
        if layer.local is None:
            raise BadInput(
                f"{name or 'the model'} was created as a SyncBatchNorm, so it is not known whether it should become a "
                "BatchNorm1d, 2d or 3d: replace this layer by hand"
            )
        plain = layer.local.__new__(layer.local)
        own = ("group", "local", "silent", "views", "_agreed", "_rows", "_pool")
        plain.__dict__ = {key: value for key, value in layer.__dict__.items() if key not in own}
        return plain

    return _replace(model, replacement)


@contextlib.contextmanager
def without_samples(model: nn.Module) -> Iterator[None]:
    """Run a forward whose samples are ignored, for a rank that has no more samples.

    The model is in evaluation mode, except that its SyncBatchNorm layers take part in the all-gather of the other
    ranks, to whose statistics they add nothing.
    """
    from lockstep.nn.sync_batchnorm import SyncBatchNorm

    modes = [(module, module.training) for module in model.modules()]
    for module, mode in modes:
        if isinstance(module, SyncBatchNorm):
            module.silent = mode
        else:
            module.training = False
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
            if isinstance(module, SyncBatchNorm):
                module.silent = False


def _replace(model: nn.Module, replacement: Callable[[str, nn.Module], nn.Module | None]) -> nn.Module:
    """Replace modules by what `replacement` returns for them; a module with several names gets one replacement."""
    replacements = {
        id(layer): new for name, layer in model.named_modules() if (new := replacement(name, layer)) is not None
    }
    for module in list(model.modules()):
        for name, child in list(children_of(module).items()):
            if id(child) in replacements:
                children_of(module)[name] = replacements[id(child)]
    return replacements.get(id(model), model)
