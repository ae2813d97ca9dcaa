"""The result of a run as a document: of what each rank measured. Pure, and without torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lockstep.strategies.stats import How
from lockstep.train.schema.result_json import BestEvaluation, Done, RankResult
from lockstep.train.steps import RankFigures, StepLog, warmup

if TYPE_CHECKING:
    from lockstep.recipe import Plan
    from lockstep.train.best_metric import BestMetric
    from lockstep.train.memory_use import Peak
    from lockstep.train.schema.run_json import Resumption
    from lockstep.world.place import World

HOST_BYTES = 64
FIXED = 5
"""Numbers before the host's name: peak memory, peak of what was reserved, wait, replica, stage."""
NOT_RESERVED = -1
"""In place of what was reserved, on a device that knows no such thing."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What a rank knows at the end of a run, whatever trained it."""

    plan: Plan
    """What was done: its steps are those up to an early end."""
    digest: str
    """Of the trained state."""
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


def finite_or_none(metrics: dict[str, float]) -> dict[str, float | None]:
    """Return metrics as JSON can hold them."""
    return {name: float(value) if math.isfinite(value) else None for name, value in metrics.items()}


def rank_row(log: StepLog, host: str, *, peak: Peak, wait: float = 0.0, replica: int, stage: int = 0) -> list[float]:
    """Return a rank's figures as numbers, which every backend can gather; `rank_result` reads them."""
    name = host.encode()[:HOST_BYTES].ljust(HOST_BYTES, b"\0")
    reserved = NOT_RESERVED if peak.reserved is None else peak.reserved
    return [peak.size, reserved, wait, replica, stage, *name, *log.summary()]


def rank_result(rank: int, row: Sequence[float]) -> RankResult:
    """Read what `rank_row` returned."""
    figures = RankFigures.read(row[FIXED + HOST_BYTES :])
    size, reserved, wait, replica, stage = row[:FIXED]
    parts = dict(figures.parts)
    parts["wait"] += wait
    parts["exchange"] -= wait
    return RankResult(
        rank=rank,
        replica=int(replica),
        stage=int(stage),
        host=bytes(int(number) for number in row[FIXED : FIXED + HOST_BYTES]).rstrip(b"\0").decode(errors="replace"),
        step_seconds=figures.quartiles[1],
        step_quartiles=figures.quartiles,
        parts=parts,
        hidden=figures.hidden,
        sent=int(figures.sent),
        peak_memory=int(size),
        peak_reserved=None if reserved == NOT_RESERVED else int(reserved),
        loss=figures.loss,
        weight=figures.weight,
    )


def result_document(
    world: World,
    log: StepLog,
    ended: Figures,
    ranks: Sequence[RankResult],
    *,
    start_seconds: float,
    memory_measure: str,
    compile_seconds: float = 0.0,
) -> Done:
    """Return result.json of a run that ended well."""
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
        expected_bubble=ended.how.bubble,
        shards=ended.how.shards,
        seconds=ended.seconds,
        pause_seconds=ended.paused,
        compile_seconds=compile_seconds,
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
        peak_reserved=tuple(rank.peak_reserved for rank in ranks if rank.peak_reserved is not None),
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
