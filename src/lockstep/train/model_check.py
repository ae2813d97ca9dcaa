"""What a model must not have before it is trained: weights without a size, and layers that only run elsewhere."""

from __future__ import annotations

from torch import nn
from torch.nn.parameter import is_lazy

from lockstep.errors import BadInput


def check_initialised(model: nn.Module) -> None:
    """Refuse a model with lazy layers that have not seen an example: nobody knows how large its weights are."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    lazy = [name for name, tensor in tensors if is_lazy(tensor)]
    if lazy:
        raise BadInput(
            f"the model has {len(lazy)} lazy weights without a size ({lazy[0]}): call it once on an example in the "
            "function that makes it, or give the layers their sizes"
        )


def check_batchnorm(model: nn.Module, *, device: str, workers: int, exact: bool) -> None:
    """Refuse torch's own SyncBatchNorm where it cannot run, or would make the bits depend on the workers."""
    own = next((name for name, module in model.named_modules() if type(module) is nn.SyncBatchNorm), None)
    if own is None or workers == 1 or not (exact or device == "cpu"):
        return
    why = "runs on accelerators only" if device == "cpu" else "makes the bits depend on the number of workers"
    raise BadInput(f"the layer {own} is torch's SyncBatchNorm, which {why}: use nn.BatchNorm with --sync-batchnorm")
