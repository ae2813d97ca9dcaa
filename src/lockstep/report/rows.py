"""Rows of a comparison: the repeats of each way as one line of figures, and a line for each of its ranks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from lockstep.report.bubbles import Bubble, middle_bubble
from lockstep.report.collect import FinishedRun
from lockstep.train.schema.result_json import RankResult
from lockstep.train.schema.scalars import PARTS, Part

OWN_PARTS: frozenset[Part] = frozenset({"data", "forward", "backward", "optimizer"})
"""What a rank does on its own account."""
FEWEST_STEPS = 4
"""Measured steps of one repeat from which it has a spread: fewer have no quartiles."""


@dataclass(frozen=True, kw_only=True)
class RankRow:
    """One rank of one way; every figure is the median over the repeats."""

    rank: int
    """Which."""
    stage: int = 0
    """Which part of the model it computed, where the model was cut."""
    host: str = ""
    """Where it ran."""
    seconds: float | None = None
    """Of all steps, warm-up included."""
    step_seconds: float | None = None
    """Of a step, median."""
    parts: Mapping[Part, float] = field(default_factory=dict)
    """Seconds of a mean step by part; see PARTS."""
    hidden: float = 0.0
    """Seconds of exchange behind backward, of a mean step."""
    sent: float = 0.0
    """Bytes sent in a mean step."""
    peak_memory: int = 0
    """Bytes."""
    peak_reserved: int | None = None
    """Bytes that torch held of its accelerator."""
    loss: float | None = None
    """Of the last step, over this rank's lanes."""

    @property
    def own_seconds(self) -> float:
        """What it spends on its own account in a step."""
        return math.fsum(seconds for part, seconds in self.parts.items() if part in OWN_PARTS)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One way of training the recipe, over its repeats."""

    name: str
    """The strategy, and what else tells it from its neighbours."""
    strategy: str = ""
    """The strategy alone."""
    workers: int
    """How many."""
    threads: int
    """Of each worker."""
    lanes: int = 0
    """Slices of the global batch; 0 if it is not known."""
    global_batch: int | None = None
    """Samples per step over all workers."""
    batch_per_worker: float | None = None
    """Samples per step of one worker."""
    backend: str = ""
    """The torch.distributed backend."""
    exchange: str = ""
    """What went between workers: the arena of a host, an arena per host and messages, collectives, ..."""
    optimizer: str = ""
    """Whether the optimizer ran on slices, or why it was replicated."""
    repeats: int = 0
    """How many runs ended well."""
    seconds: float | None = None
    """Training time, warm-up included, the median of the repeats."""
    seconds_spread: tuple[float, float] | None = None
    """The fastest and the slowest repeat; None if there is one repeat."""
    step_seconds: float | None = None
    """Median time of a step after warm-up, the median of the repeats."""
    step_spread: tuple[float, float] | None = None
    """The fastest and the slowest repeat's median step; of one repeat, the quartiles of its steps; None if it has few,
    see FEWEST_STEPS: then nobody can tell which of two rows is faster."""
    samples_per_second: float | None = None
    """Over all workers, after warm-up, the median of the repeats."""
    speed_up: float | None = None
    """Time per step of `single` with the same threads, divided by this row's."""
    speed_up_all_cores: float | None = None
    """The same against `single` with all cores."""
    efficiency: float | None = None
    """Speed-up divided by how many times `single`'s cores this row has; 1 is ideal."""
    start_seconds: float | None = None
    """From the start of the ranks to the first step, the median of the repeats."""
    compile_seconds: float | None = None
    """What the first step of a compiled model took longer than the others."""
    peak_memory: tuple[int, ...] = ()
    """Bytes, by rank."""
    memory_measure: str = ""
    """What was measured."""
    peak_reserved: tuple[int, ...] = ()
    """Bytes that torch held of the accelerators, by rank; empty on the CPU."""
    predicted_memory: int | None = None
    """Bytes that the largest rank was predicted to take, see `lockstep fit`; None if nobody predicted it."""
    loss: float | None = None
    """Of the last step."""
    finite: bool = True
    """Whether loss and metrics stayed numbers."""
    metrics: Mapping[str, float | None] | None = None
    """Evaluated after the last step."""
    digest: str = ""
    """Of the trained state; empty if the repeats differ."""
    depends_on_workers: str = ""
    """What makes the digest depend on the number of workers, if anything does."""
    parity: str = ""
    """Whether the bits are those of the first row; if not, by how much, where first, and the likely cause."""
    parts: Mapping[Part, float] = field(default_factory=dict)
    """Seconds of a mean step by part, the mean over ranks; see PARTS."""
    unaccounted: float | None = None
    """The share of the step that no part explains."""
    bubble: Bubble | None = None
    """Of a model that is cut: for how much of a step its workers had nothing to do."""
    ranks: tuple[RankRow, ...] = ()
    """By rank."""
    slowest_rank: int | None = None
    """The rank that the others wait for; None if there is none."""
    overlap: float | None = None
    """The share of the exchange that was hidden behind backward."""
    why: str = ""
    """One sentence: the main reason for its speed, and what to try."""
    notes: tuple[str, ...] = ()
    """What a reader should know before trusting the row."""
    why_not: str = ""
    """Why it did not run, if it did not."""

    @property
    def largest_memory(self) -> int:
        """Bytes of the largest rank."""
        return max(self.peak_memory, default=0)

    @property
    def total_memory(self) -> int:
        """Bytes of all ranks."""
        return sum(self.peak_memory)

    def as_json(self) -> dict[str, object]:
        """Return what comparison.json holds of it."""
        return asdict(self) | {"largest_memory": self.largest_memory, "total_memory": self.total_memory}


def summarise(name: str, workers: int, threads: int, runs: Sequence[FinishedRun], why_not: str = "") -> Row:
    """Return the row of one way from its finished runs, as far as the row can be told without its neighbours."""
    if not runs:
        return Row(name=name, workers=workers, threads=threads, why_not=why_not or "not run")
    results = [run.result for run in runs]
    last, setup = results[-1], runs[-1].setup
    seconds = [result.seconds for result in results]
    steps = [result.step_seconds for result in results]
    digests = {result.digest for result in results}
    ranks = _rank_rows(runs)
    return Row(
        name=name,
        strategy=setup.spec.strategy,
        workers=workers,
        threads=last.threads,
        global_batch=setup.recipe.global_batch,
        batch_per_worker=setup.recipe.global_batch / workers,
        backend=last.backend or "",
        exchange=last.exchange,
        optimizer=last.optimizer,
        repeats=len(runs),
        seconds=statistics.median(seconds),
        seconds_spread=(min(seconds), max(seconds)) if len(runs) > 1 else None,
        step_seconds=statistics.median(steps),
        step_spread=(min(steps), max(steps)) if len(runs) > 1 else _quartiles(runs[0]),
        samples_per_second=statistics.median(throughput(run) for run in runs),
        start_seconds=statistics.median(result.start_seconds for result in results),
        compile_seconds=statistics.median(result.compile_seconds for result in results),
        peak_memory=_largest([result.peak_memory for result in results]),
        memory_measure=last.memory_measure,
        peak_reserved=_largest([result.peak_reserved for result in results if result.peak_reserved]),
        predicted_memory=setup.spec.predicted_memory,
        loss=last.loss,
        finite=all(result.finite and result.loss is not None for result in results),
        metrics=dict(last.metrics),
        digest=digests.pop() if len(digests) == 1 else "",
        depends_on_workers=last.depends_on_workers,
        parts=mean_parts(ranks),
        unaccounted=unaccounted(runs),
        bubble=middle_bubble(runs),
        ranks=ranks,
        why_not=why_not,
    )


def _quartiles(run: FinishedRun) -> tuple[float, float] | None:
    """Return the quartiles of a run's steps; None if there are too few."""
    if _recorded_steps(run) - run.result.warmup_steps < FEWEST_STEPS:
        return None
    low, _, high = run.result.step_quartiles
    return low, high


def _recorded_steps(run: FinishedRun) -> int:
    """Return how many steps were timed; of a run that was resumed, those of the last attempt."""
    return len(run.steps[0]) if run.steps else run.result.steps


def mean_parts(ranks: Sequence[RankRow]) -> dict[Part, float]:
    """Return the parts of a step, the mean over the ranks that measured them."""
    measured = [rank.parts for rank in ranks if rank.parts]
    return {part: math.fsum(one.get(part, 0.0) for one in measured) / len(measured) for part in PARTS if measured}


def throughput(run: FinishedRun) -> float:
    """Return samples per second after warm-up."""
    whole, seconds, warmup = run.result.samples_per_second, run.result.seconds, run.result.warmup_steps
    steps = _recorded_steps(run)
    before = max((math.fsum(line.total for line in rank[:warmup]) for rank in run.steps), default=0.0)
    return whole * seconds * (1.0 - warmup / steps) / (seconds - before) if 0.0 < before < seconds else whole


def unaccounted(runs: Sequence[FinishedRun]) -> float | None:
    """Return the share of the steps after warm-up that their parts do not explain; None if no parts were measured."""
    parts = total = 0.0
    for run in runs:
        for line in (line for rank in run.steps for line in rank[run.result.warmup_steps :]):
            if line.seconds:
                parts += math.fsum(line.seconds.values())
                total += line.total
    return 1.0 - parts / total if total else None


def _rank_rows(runs: Sequence[FinishedRun]) -> tuple[RankRow, ...]:
    """Bring each rank's figures of all repeats together."""
    by_rank: dict[int, list[tuple[RankResult, float]]] = {}
    for run in runs:
        for figures, lines in zip(run.result.ranks, run.steps, strict=True):
            by_rank.setdefault(figures.rank, []).append((figures, math.fsum(line.total for line in lines)))
    return tuple(_rank_row(rank, repeats) for rank, repeats in sorted(by_rank.items()))


def _rank_row(rank: int, repeats: Sequence[tuple[RankResult, float]]) -> RankRow:
    every = [figures for figures, _ in repeats]
    parts = [figures.parts for figures in every if figures.parts]
    return RankRow(
        rank=rank,
        stage=every[-1].stage,
        host=every[-1].host,
        seconds=statistics.median(seconds for _, seconds in repeats),
        step_seconds=statistics.median(figures.step_seconds for figures in every),
        parts={part: statistics.median(one.get(part, 0.0) for one in parts) for part in PARTS if parts},
        hidden=statistics.median(figures.hidden for figures in every),
        sent=statistics.median(figures.sent for figures in every),
        peak_memory=max(figures.peak_memory for figures in every),
        peak_reserved=max((one.peak_reserved for one in every if one.peak_reserved is not None), default=None),
        loss=every[-1].loss,
    )


def _largest(repeats: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the largest figure of each rank over the repeats."""
    return tuple(max(ranks) for ranks in zip(*repeats, strict=True))
