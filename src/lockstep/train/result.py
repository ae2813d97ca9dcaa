"""The result of a run: every rank's figures in one file, written by rank 0."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from lockstep.strategies.base import How
from lockstep.torch_compat.modules import is_compiled
from lockstep.train import memory_use
from lockstep.train.evaluations import finite_or_none
from lockstep.train.final_weights import write_weights
from lockstep.train.records import write_document
from lockstep.train.schema.rank_jsonl import EndLine
from lockstep.train.schema.result_json import NAME, BestEvaluation, Done, RankResult
from lockstep.train.schema.run_json import read_setup
from lockstep.train.steps import RankFigures, StepLog, waited, warmup
from lockstep.train.weights import NAME as WEIGHTS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import nn

    from lockstep.comm.group import Group
    from lockstep.mesh import Mesh
    from lockstep.recipe import Plan, Recipe
    from lockstep.state.holdings import Holding
    from lockstep.train.best_metric import BestMetric
    from lockstep.train.schema.run_json import Resumption
    from lockstep.world.place import World

HOST_BYTES = 64
FIXED = 4
"""Numbers before the host's name: peak memory, wait, replica, stage."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What a rank knows at the end."""

    plan: Plan
    """What was done: its steps are those up to an early end."""
    recipe: Recipe
    """What was trained."""
    model: nn.Module
    """The plain one, with the trained weights."""
    holdings: Sequence[Holding]
    """What this rank holds of the trained state."""
    digest: str
    """Of that state."""
    metrics: dict[str, float]
    """Of the last evaluation."""
    started: float
    """When the first step began, in seconds since the epoch."""
    seconds: float
    """Of all steps."""
    paused: float = 0.0
    """Seconds between steps in which the weights were looked at; not part of `seconds`."""
    depends_on_workers: str = ""
    """Which setting makes the digest depend on the number of workers, if any does."""
    same_bits_up_to: int = 0
    """On how many workers, from 1 up to this, the digest is the same; 0 if it depends on their number."""
    how: How = field(default_factory=How)
    """How the strategy ran."""
    checkpoint_seconds: float = 0.0
    """Spent on checkpoints; no part of `seconds`."""
    evaluation_seconds: float = 0.0
    """Spent on evaluations; no part of `seconds`."""
    callback_seconds: float = 0.0
    """Spent on the recipe's callbacks and on TensorBoard; no part of `seconds`."""
    best: BestMetric | None = None
    """The best evaluation, where one is kept."""
    stopped: str = ""
    """Why the run ended before the steps that were asked for; empty if it did not."""
    resumed: Sequence[Resumption] = ()
    """The checkpoints at which the run was resumed, the last with what may make other bits."""
    most_weights: int | None = None
    """Final weights of more bytes are not written; None: they are, whatever their size."""


def leave_result(folder: Path, mesh: Mesh, log: StepLog, ended: Ended) -> None:
    """Write this rank's end line and gather every rank's figures; rank 0 writes the weights and result.json.

    All ranks call this together.
    """
    world = mesh.world
    peak, measure = memory_use.peak(world.device)
    log.records.write(EndLine(seconds=ended.seconds, peak_memory=peak, digest=ended.digest))
    name = world.host.encode()[:HOST_BYTES].ljust(HOST_BYTES, b"\0")
    table = log.ready_table()
    wait = 0.0
    if table and mesh.everyone.size > 1 and world.nodes == 1:  # the ranks of one host share a clock
        flat = gather(mesh.everyone, [number for row in table for number in row])
        wait = waited([[row[i : i + 2] for i in range(0, len(row), 2)] for row in flat], world.rank)
    rows = gather(mesh.everyone, [peak, wait, mesh.replica, mesh.stage, *name, *log.summary()])
    if world.rank == 0:
        ranks = [_rank(rank, row) for rank, row in enumerate(rows)]
        # The clock of the host that wrote run.json may be ahead of ours.
        start_seconds = max(0.0, ended.started - read_setup(folder).created)
        result = _result(world, log, ended, ranks, start_seconds=start_seconds, memory_measure=measure)
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


def _rank(rank: int, row: Sequence[float]) -> RankResult:
    figures = RankFigures.read(row[FIXED + HOST_BYTES :])
    parts = dict(figures.parts)
    parts["wait"] += row[1]
    parts["exchange"] -= row[1]
    return RankResult(
        rank=rank,
        replica=int(row[2]),
        stage=int(row[3]),
        host=bytes(int(number) for number in row[FIXED : FIXED + HOST_BYTES]).rstrip(b"\0").decode(errors="replace"),
        step_seconds=figures.quartiles[1],
        step_quartiles=figures.quartiles,
        parts=parts,
        hidden=figures.hidden,
        sent=int(figures.sent),
        peak_memory=int(row[0]),
        loss=figures.loss,
        weight=figures.weight,
    )


def _compile_seconds(log: StepLog, model: nn.Module, usual: float) -> float:
    """Return what the first step took longer than usual, if the model is compiled; else 0."""
    return max(0.0, log.totals[0] - usual) if log.totals and is_compiled(model) else 0.0


def _result(
    world: World, log: StepLog, ended: Ended, ranks: Sequence[RankResult], *, start_seconds: float, memory_measure: str
) -> Done:
    slowest = max(ranks, key=lambda rank: rank.step_seconds)
    # The stages of a replica work on the same lanes: each lane's loss counts once.
    counted = [rank for rank in ranks if rank.stage == 0]
    weight = sum(rank.weight for rank in counted)
    metrics = finite_or_none(ended.metrics)
    return Done(
        finite=None not in metrics.values(),
        measured=log.measure,
        digest=ended.digest,
        depends_on_workers=ended.depends_on_workers,
        same_bits_up_to=ended.same_bits_up_to,
        exchange=ended.how.exchange,
        optimizer=ended.how.optimizer,
        cut=ended.how.cut,
        seconds=ended.seconds,
        pause_seconds=ended.paused,
        compile_seconds=_compile_seconds(log, ended.model, slowest.step_seconds),
        checkpoint_seconds=ended.checkpoint_seconds,
        evaluation_seconds=ended.evaluation_seconds,
        callback_seconds=ended.callback_seconds,
        start_seconds=start_seconds,
        warmup_steps=warmup(len(log.totals)),
        step_seconds=slowest.step_seconds,
        step_quartiles=slowest.step_quartiles,
        samples_per_second=log.samples / ended.seconds,
        steps=ended.plan.steps,
        threads=world.threads,
        device=world.device,
        backend=world.backend,
        peak_memory=tuple(rank.peak_memory for rank in ranks),
        memory_measure=memory_measure,
        loss=sum(rank.loss * rank.weight for rank in counted) / weight if weight else None,
        metrics=metrics,
        ranks=tuple(ranks),
        best=_best(ended.best),
        stopped=ended.stopped,
        resumed=tuple(ended.resumed),
    )


def _best(best: BestMetric | None) -> BestEvaluation | None:
    if best is None or best.value is None:
        return None
    return BestEvaluation(metric=best.metric, value=best.value, steps=best.steps)
