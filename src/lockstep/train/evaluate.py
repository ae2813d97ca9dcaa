"""Evaluation: every sample once, and the same sum on any number of workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lockstep.data.loader import to_device
from lockstep.data.source import Collate, fetch, open_source
from lockstep.errors import BadInput
from lockstep.lanes.schedule import owned_lanes
from lockstep.recipe import Loss, Metrics

if TYPE_CHECKING:
    from lockstep.world.place import World


def evaluate(
    world: World,
    model: nn.Module,
    metrics: Metrics,
    dataset: Any,
    *,
    batch: int,
    collate: Collate | None = None,
) -> dict[str, float]:
    """Return the weighted mean of each metric over the dataset.

    The data is cut into chunks of `batch` samples; a worker takes a contiguous run of chunks. Each chunk's
    sums have their own place in one table, so adding the workers' tables adds only zeros to them, and the
    final sum runs over chunks in order, whoever computed them.
    """
    source = open_source(dataset, collate)
    dataset, collate = (list(source.dataset) if source.stream else source.dataset), source.collate
    samples = len(dataset)
    if samples == 0:
        raise BadInput("the evaluation data is empty")
    chunks = -(-samples // batch)
    table: Tensor | None = None
    names: list[str] = []
    mode = model.training
    model.eval()
    with torch.no_grad():
        for chunk in owned_lanes(chunks, world.size, world.rank) or range(1):
            part = list(range(chunk * batch, min(samples, (chunk + 1) * batch)))
            found = metrics(model, to_device(fetch(dataset, part, collate), world.device))
            names = list(found)
            if table is None:
                table = torch.zeros(chunks, len(names), 2, dtype=torch.float64)
            if chunk in owned_lanes(chunks, world.size, world.rank):
                for column, value in enumerate(found.values()):
                    table[chunk, column] = torch.tensor(_sum(value, len(part)), dtype=torch.float64)
    model.train(mode)
    assert table is not None
    if world.size > 1:
        shared = table.to(world.device)
        dist.all_reduce(shared)
        table = shared.cpu()
    totals = [sum(column) for column in table.flatten(1).T.tolist()]
    return {name: totals[2 * i] / totals[2 * i + 1] for i, name in enumerate(names)}


def _sum(value: float | Tensor | Loss, samples: int) -> tuple[float, float]:
    if isinstance(value, Loss):
        return float(value.total), float(value.weight)
    return float(value) * samples, float(samples)
