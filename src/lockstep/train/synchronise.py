"""What a run needs so that its workers can meet inside the model: SyncBatchNorm, and as many lanes on each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn

from lockstep.data.loader import Batch, LaneBatch
from lockstep.errors import BadInput
from lockstep.nn import SyncBatchNorm
from lockstep.registry import describe


def check_sync_batchnorm(strategy: str, lanes: int, workers: int, global_batch: int | None = None) -> None:
    """Refuse SyncBatchNorm for threads, which have none, and for lanes that the workers cannot run side by side."""
    if workers > 1 and describe(strategy).processes(workers) == 1:
        raise BadInput(f"--sync-batchnorm: the threads of strategy {strategy} have BatchNorm of a lane each; use ddp")
    if not lanes % workers:
        return
    every = range(workers, lanes + workers + 1, workers) if global_batch is None else range(workers, global_batch + 1)
    fitting = [n for n in every if n % workers == 0 and not (global_batch or 0) % n]
    nearest = min(fitting, key=lambda n: (abs(n - lanes), -n), default=None)
    advice = f"--lanes {nearest}" if nearest else f"a number of workers that divides the global batch of {global_batch}"
    raise BadInput(
        f"SyncBatchNorm couples the lanes that are computed at the same time, and lanes={lanes} gives {workers} "
        f"workers different numbers of them: use {advice}"
    )


def with_sync_batchnorm(model: nn.Module) -> nn.Module:
    """Convert a model; refuse one that has nothing to convert."""
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
