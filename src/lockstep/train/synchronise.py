"""What a run needs so that its workers can meet inside the model: SyncBatchNorm, and as many lanes on each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn

from lockstep.data.loader import Batch, LaneBatch
from lockstep.errors import BadInput
from lockstep.nn import SyncBatchNorm


def with_sync_batchnorm(model: nn.Module, lanes: int, workers: int) -> nn.Module:
    """Convert a model; refuse one that has nothing to convert, and lanes that the workers cannot run side by side."""
    if lanes % workers:
        raise BadInput(
            f"SyncBatchNorm couples the lanes that are in flight together, and lanes={lanes} gives {workers} workers "
            f"different numbers of them: use --lanes {lanes - lanes % workers + workers}"
        )
    model = SyncBatchNorm.convert_sync_batchnorm(model)
    if not any(isinstance(module, SyncBatchNorm) for module in model.modules()):
        raise BadInput("--sync-batchnorm: the model has no BatchNorm layer; leave the option out")
    return model


def check_equal_lanes(strategy: str, lanes: int, workers: int) -> None:
    """Refuse lanes of which the workers of a strategy that meets inside forward would have different numbers."""
    if lanes % workers:
        raise BadInput(
            f"strategy {strategy} exchanges weights in every forward, so every worker must run as many lanes, and "
            f"lanes={lanes} cannot be divided evenly over {workers} workers: use --lanes "
            f"{lanes - lanes % workers + workers}"
        )


def fill_up(batch: Batch, lanes: int, sample: Callable[[], Any]) -> Batch:
    """Give a worker whose lanes ran dry in a short batch as many as the others have; see [Note: filler]."""
    missing = lanes - len(batch.lanes)
    if missing <= 0:
        return batch
    filler = LaneBatch(batch.lanes[-1].lane, 0, sample())
    return replace(batch, lanes=(*batch.lanes, *[filler] * missing))
