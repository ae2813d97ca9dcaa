"""result.json: how a run ended, told apart by `outcome`, and every rank's figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Meta

from lockstep.train.schema.error_json import LastStep
from lockstep.train.schema.reading import read_document
from lockstep.train.schema.run_json import Resumption
from lockstep.train.schema.scalars import (
    Count,
    Digest,
    Document,
    Fraction,
    LongerThanZero,
    Part,
    Positive,
    Rank,
    Rate,
    Record,
    Seconds,
    Weight,
    Workers,
)

NAME = "result.json"
Quartiles = tuple[Seconds, Seconds, Seconds]


class RankResult(Record, frozen=True, kw_only=True):
    """One rank's figures of a step, after the warm-up."""

    rank: Rank
    """Which rank."""
    replica: Rank
    """Which copy of the model it works on."""
    stage: Rank
    """Which part of the model it holds, where the model is cut."""
    host: str
    """Where it ran."""
    step_seconds: Seconds
    """Median of its steps."""
    step_quartiles: Quartiles
    """Quarter points of its steps."""
    parts: dict[Part, Seconds]
    """Seconds by part, of a mean step."""
    hidden: Seconds
    """Seconds of exchange behind backward, of a mean step."""
    sent: Count
    """Bytes put into the exchange, of a mean step."""
    peak_memory: Count
    """Bytes."""
    peak_reserved: Count | None = None
    """On an accelerator: the most bytes that torch held of it, in use or kept for the next use."""
    loss: float
    """Of the last step, over this rank's lanes."""
    weight: Weight
    """Of the last step's lanes."""


class BestEvaluation(Record, frozen=True, kw_only=True):
    """The best evaluation of a run by one metric; best.safetensors has its weights."""

    metric: str
    """Its name."""
    value: float
    """Of the metric."""
    steps: Positive
    """Steps done before it."""


class Done(Document, frozen=True, kw_only=True, tag_field="outcome", tag="done"):
    """The result of a run that ended well."""

    finite: bool
    """False if a metric is not a finite number (it is null)."""
    measured: bool
    """False with `--no-measure`."""
    digest: Digest
    """Of the trained state."""
    depends_on_workers: str
    """Which setting makes the digest depend on the number of workers; empty if none does."""
    same_bits_up_to: Count
    """On how many workers, from 1 up to this, the digest is the same; 0 if a setting or the strategy prevents it."""
    exchange: str
    """How partial sums went between workers; empty for one worker."""
    optimizer: str
    """`on slices`, or `replicated: ` and why; see [The same bits](bits.md)."""
    cut: str = ""
    """Of a model that is cut: the layers, parameters and measured time of each stage."""
    expected_bubble: Fraction | None = None
    """Of a model that is cut: the bubble that the times of its layers let expect; null if they were not timed."""
    shards: str = ""
    """Of weights that are divided over workers: how many, in how many blocks, and what every worker has."""
    seconds: LongerThanZero
    """Of all steps, without the pauses for fingerprints."""
    pause_seconds: Seconds
    """Those pauses."""
    compile_seconds: Seconds
    """Of a compiled model: what the first step took longer than the others; else 0."""
    checkpoint_seconds: Seconds = 0.0
    """Spent on writing checkpoints and best weights; no part of `seconds`."""
    evaluation_seconds: Seconds = 0.0
    """Spent on evaluations; no part of `seconds`."""
    callback_seconds: Seconds = 0.0
    """Spent on the recipe's `on_step` and `on_epoch` and on TensorBoard; no part of `seconds`."""
    start_seconds: Seconds
    """From run.json to the first step: starting, importing, joining, making data and model."""
    warmup_steps: Count
    """The first steps, left out of everything below that is per step."""
    step_seconds: LongerThanZero
    """Median of the slowest rank's steps."""
    step_quartiles: Quartiles
    """Quarter points of the slowest rank's steps."""
    samples_per_second: Rate
    """Over all workers and all steps."""
    steps: Positive
    """Of the whole run, also those before it was resumed."""
    threads: Workers
    """Threads of each worker."""
    device: str
    """What was computed on."""
    backend: str | None
    """The torch.distributed backend; null for one process."""
    peak_memory: Annotated[tuple[Count, ...], Meta(min_length=1)]
    """Bytes by rank."""
    memory_measure: str
    """What was measured as memory."""
    peak_reserved: tuple[Count, ...] = ()
    """On accelerators: bytes by rank that torch held of them at most; empty on the CPU."""
    loss: float | None
    """Of the last step, over all ranks; null if its weight is 0."""
    metrics: dict[str, float | None]
    """Of the last evaluation; null for one that is not a finite number."""
    best: BestEvaluation | None = None
    """The best evaluation, with `--keep-best`."""
    stopped: str = ""
    """Why `--patience` ended the run before the steps that were asked for; empty if it did not."""
    ranks: Annotated[tuple[RankResult, ...], Meta(min_length=1)]
    """By rank."""
    resumed: tuple[Resumption, ...] = ()
    """The checkpoints at which the run was resumed."""


class Failed(Document, frozen=True, kw_only=True, tag_field="outcome", tag="failed"):
    """The result of a run that did not end well."""

    rank: Rank
    """The rank that failed first."""
    step: LastStep
    """In which step; -1 before the first."""
    finite: bool
    """False if the loss is not a finite number."""
    why: str
    """The report: rank, host, step, and the first traceback."""


Result = Done | Failed


def read_result(folder: Path) -> Result:
    """Read result.json, or refuse it."""
    result: Result = read_document(folder / NAME, Result)
    return result
