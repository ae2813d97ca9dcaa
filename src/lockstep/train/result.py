"""The result of a run: every rank's figures in one file, written by rank 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from lockstep.torch_compat.modules import is_compiled
from lockstep.train import memory_use
from lockstep.train.final_weights import write_weights
from lockstep.train.records import write_document
from lockstep.train.result_figures import Figures, rank_result, rank_row, result_document
from lockstep.train.schema.rank_jsonl import EndLine
from lockstep.train.schema.result_json import NAME
from lockstep.train.schema.run_json import read_setup
from lockstep.train.steps import StepLog, waited
from lockstep.train.weights import NAME as WEIGHTS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import nn

    from lockstep.comm.group import Group
    from lockstep.mesh import Mesh
    from lockstep.recipe import Recipe
    from lockstep.state.holdings import Holding


@dataclass(frozen=True, kw_only=True)
class Ended(Figures):
    """What a rank knows at the end, with what it trained."""

    recipe: Recipe
    """What was trained."""
    model: nn.Module
    """The plain one, with the trained weights."""
    holdings: Sequence[Holding]
    """What this rank holds of the trained state."""
    most_weights: int | None = None
    """Final weights of more bytes are not written; None: they are, whatever their size."""


def leave_result(folder: Path, mesh: Mesh, log: StepLog, ended: Ended) -> None:
    """Write this rank's end line and gather every rank's figures; rank 0 writes the weights and result.json.

    All ranks call this together.
    """
    world = mesh.world
    peak = memory_use.peak(world.device)
    log.records.write(
        EndLine(seconds=ended.seconds, peak_memory=peak.size, peak_reserved=peak.reserved, digest=ended.digest)
    )
    table = log.ready_table()
    wait = 0.0
    if table and mesh.everyone.size > 1 and world.nodes == 1:  # the ranks of one host share a clock
        flat = gather(mesh.everyone, [number for row in table for number in row])
        wait = waited([[row[i : i + 2] for i in range(0, len(row), 2)] for row in flat], world.rank)
    row = rank_row(log, world.host, peak=peak, wait=wait, replica=mesh.replica, stage=mesh.stage)
    rows = gather(mesh.everyone, row)
    if world.rank == 0:
        ranks = [rank_result(rank, row) for rank, row in enumerate(rows)]
        # The clock of the host that wrote run.json may be ahead of ours.
        start_seconds = max(0.0, ended.started - read_setup(folder).created)
        result = result_document(
            world,
            log,
            ended,
            ranks,
            start_seconds=start_seconds,
            memory_measure=peak.measure,
            compile_seconds=_compile_seconds(log, ended.model, max(rank.step_seconds for rank in ranks)),
        )
    about = {"recipe": ended.recipe.name, "step": ended.plan.steps, "digest": ended.digest}
    write_weights(folder / WEIGHTS, mesh.everyone, ended.holdings, ended.model, about, ended.most_weights)
    if world.rank == 0:
        write_document(folder / NAME, result)


def gather(group: Group, numbers: Sequence[float]) -> list[list[float]]:
    """Return every rank's numbers, in the group's order; plain numbers only, so nothing is unpickled."""
    if group.size == 1:
        return [list(numbers)]
    mine = torch.tensor(numbers, dtype=torch.float64, device=group.device)
    rows = [torch.empty_like(mine) for _ in group.ranks]
    dist.all_gather(rows, mine, group=group.process_group)
    return [row.tolist() for row in rows]


def _compile_seconds(log: StepLog, model: nn.Module, usual: float) -> float:
    """Return what the first step took longer than usual, if the model is compiled; else 0."""
    return max(0.0, log.totals[0] - usual) if log.totals and is_compiled(model) else 0.0
