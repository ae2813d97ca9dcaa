"""Evaluation: every sample once, and the same sum on any number of workers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lockstep.comm.broadcast import all_gather_text
from lockstep.data.augment import SampleSeeds
from lockstep.data.loader import to_device
from lockstep.data.source import Collate, Source, fetch, open_source, read_stream
from lockstep.errors import BadInput
from lockstep.lanes.schedule import owned_lanes
from lockstep.recipe import Loss, Metrics
from lockstep.train.undisturbed import seed_evaluation, undisturbed

if TYPE_CHECKING:
    from lockstep.mesh import Mesh


Call = Callable[[Callable[[nn.Module, Any], Any], Any], Any]
"""Calls a function with the model and some data; gives None where another stage of the model has the result."""


def evaluate(
    mesh: Mesh,
    model: nn.Module,
    metrics: Metrics,
    dataset: Any,
    *,
    batch: int,
    collate: Collate | None = None,
    most: int | None = None,
    call: Call | None = None,
) -> dict[str, float]:
    """Return the weighted mean of each metric over the dataset; it leaves no trace, see undisturbed.py.

    The data is cut into chunks of `batch` samples; a replica takes a contiguous run of chunks. Each chunk's
    sums have their own place in one table, so adding the replicas' tables adds only zeros to them, and the
    final sum runs over chunks in order, whoever computed them. `most`: only the first so many samples.
    """
    source = evaluation_source(dataset, collate)
    dataset, collate = source.dataset, source.collate
    if source.stream:
        dataset = list(read_stream(dataset, SampleSeeds(0, 0)))
    samples = len(dataset) if most is None else min(most, len(dataset))
    if samples == 0:
        raise BadInput("the evaluation data is empty")
    chunks = -(-samples // batch)
    mine = owned_lanes(chunks, mesh.replicas, mesh.replica)
    table: Tensor | None = None
    names: list[str] = []
    for chunk in mine or range(1):
        part = list(range(chunk * batch, min(samples, (chunk + 1) * batch)))
        # Chunk by chunk: what one leaves behind must not depend on who evaluates the next.
        with undisturbed(model, mesh.world.device), torch.no_grad():
            model.eval()
            seed_evaluation(chunk)
            data = to_device(fetch(dataset, part, collate), mesh.world.device)
            values = metrics(model, data) if call is None else call(metrics, data)
        if values is None and not mesh.last_stage:
            continue
        if not isinstance(values, Mapping):
            raise BadInput(
                f"evaluate(model, batch) returned a {type(values).__name__}, expected a dict of named values: return "
                '{"accuracy": value}'
            )
        names = list(values)
        if table is None:
            table = torch.zeros(chunks, len(names), 2, dtype=torch.float64)
        if chunk in mine:
            for column, (name, value) in enumerate(values.items()):
                table[chunk, column] = torch.tensor(_sum(name, value, len(part)), dtype=torch.float64)
    names = json.loads(all_gather_text(json.dumps(names), mesh.across_stages)[-1])
    if table is None:
        table = torch.zeros(chunks, len(names), 2, dtype=torch.float64)
    group = mesh.everyone
    if group.size > 1:
        shared = table.to(group.device)
        dist.all_reduce(shared, group=group.process_group)
        table = shared.cpu()
    totals = [sum(column) for column in table.flatten(1).T.tolist()]
    return {name: totals[2 * i] / totals[2 * i + 1] for i, name in enumerate(names)}


def evaluation_source(data: Any, collate: Collate | None) -> Source:
    """Return the source of evaluation data; each sample is counted once, so nothing of it may be dropped."""
    source = open_source(data, collate)
    if source.drop_last:
        raise BadInput(
            "the DataLoader of the evaluation data has drop_last=True, but every sample counts: leave it out"
        )
    return source


def _sum(name: str, value: float | Tensor | Loss, samples: int) -> tuple[float, float]:
    if isinstance(value, Loss):
        return float(value.total), float(value.weight)
    try:
        return float(value) * samples, float(samples)
    except (TypeError, ValueError, RuntimeError) as error:
        shape = f" of shape {tuple(value.shape)}" if isinstance(value, Tensor) else ""
        raise BadInput(
            f"evaluate(model, batch) returned a {type(value).__name__}{shape} as {name!r}, expected one number (the "
            "mean over the batch) or Loss(total, weight)"
        ) from error
