"""rank-N.jsonl: what one rank did, a line for each event, told apart by `kind`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lockstep.train.schema.reading import read_lines, read_lines_from
from lockstep.train.schema.scalars import (
    Count,
    Digest,
    Fraction,
    LongerThanZero,
    Offset,
    Part,
    Positive,
    Rank,
    Rate,
    Record,
    Seconds,
    Time,
    Weight,
    Workers,
)

PATTERN = "rank-*.jsonl"


class Line(Record, frozen=True, kw_only=True, tag_field="kind", omit_defaults=True):
    """Any line of a rank."""


class HeaderLine(Line, frozen=True, kw_only=True, tag="header"):
    """The first line."""

    rank: Rank
    """The rank of this process."""
    size: Workers
    """The number of processes."""
    replica: Rank
    """Which copy of the model it works on."""
    stage: Rank
    """Which part of the model it holds, where the model is cut."""
    host: str
    """Where it runs."""
    pid: Positive
    """The process."""
    device: str
    """What it computes on."""
    threads: Workers
    """Threads that it computes with."""
    backend: str | None
    """The torch.distributed backend; null for one process."""
    lanes: Positive
    """Slices of the global batch."""
    time: Time
    """When the line was written, in seconds since the epoch."""
    exchange: str
    """How partial sums go between workers; empty for one worker."""
    optimizer: str
    """`on slices`, or `replicated: ` and why."""
    cut: str = ""
    """Of a model that is cut: the layers, parameters and measured time of each stage."""
    shards: str = ""
    """Of weights that are divided over workers: how many, in how many blocks, and what every worker has."""
    cpus: Workers
    """CPUs that it may use: its share of the job's, or of the host's."""
    job: str = ""
    """The number of the Slurm job that it runs in; empty outside of one."""


class StepLine(Line, frozen=True, kw_only=True, tag="step"):
    """One step. What `--no-measure` leaves out is absent."""

    step: Count
    """Counted from 0 over the whole run."""
    epoch: Count
    """The pass over the data."""
    loss: float
    """The mean over this rank's lanes; the report weighs the ranks together."""
    weight: Weight
    """Of this rank's lanes: samples, tokens, or what the loss says."""
    total: Seconds
    """Seconds of the whole step, data included; not of writing this line or of fingerprints."""
    began: Time
    """When the step began, in seconds since the epoch."""
    seconds: dict[Part, Seconds] | None = None
    """Seconds by part of the step; the six parts add up to `total` within 5%."""
    hidden: Seconds | None = None
    """Seconds of exchange that ran behind backward; the overlap is `hidden / (hidden + exchange)`."""
    sent: Count | None = None
    """Bytes of gradients that this rank put into the exchange."""
    memory: Count | None = None
    """Bytes in use after the step."""
    ready: Time | None = None
    """Of stock DDP only: when this rank had all its gradients, in seconds since the epoch."""
    spans: tuple[tuple[Part, Offset, Seconds], ...] | None = None
    """Of steps 3 to 7: the parts in order, each with its start after `began` and its length in seconds; on an
    accelerator an update of the step before may have begun before it.
    """
    span_lanes: tuple[Count | None, ...] | None = None
    """Of a model that is cut: for which lane each of `spans` was; null for what is not of one lane."""


class NotFiniteLine(Line, frozen=True, kw_only=True, tag="not-finite"):
    """The step that ended the run because its loss is not a finite number."""

    step: Count
    """Counted from 0 over the whole run."""
    epoch: Count
    """The pass over the data."""


class CheckpointLine(Line, frozen=True, kw_only=True, tag="checkpoint"):
    """A checkpoint was written."""

    steps: Positive
    """Steps done before it."""
    seconds: Seconds
    """How long all ranks stood still for it; no part of a step's time."""
    stop: bool = False
    """Whether the run was told to stop here, by the signal before a time limit."""


class EvaluationLine(Line, frozen=True, kw_only=True, tag="evaluation"):
    """The model was evaluated; every rank writes the same metrics."""

    steps: Positive
    """Steps done before it."""
    metrics: dict[str, float | None]
    """Over all of the evaluation data; null for one that is not a finite number."""
    seconds: Seconds
    """How long all ranks stood still for it; no part of a step's time."""


class UsageLine(Line, frozen=True, kw_only=True, tag="usage"):
    """What a rank used of its machine, about once a second."""

    time: Time
    """When, in seconds since the epoch."""
    cpus: Rate
    """CPUs in use by the process and those that it started, as a mean since the line before."""
    memory: Count
    """Bytes in use by these processes."""
    gpu: Fraction | None = None
    """The share of time in which its GPU computed; null where NVML does not tell."""
    gpu_memory: Count | None = None
    """Bytes in use on its GPU, by all processes."""


class EndLine(Line, frozen=True, kw_only=True, tag="end"):
    """The last line of a rank that ended well."""

    seconds: LongerThanZero
    """Of all steps."""
    peak_memory: Count
    """Bytes."""
    peak_reserved: Count | None = None
    """On an accelerator: the most bytes that torch held of it, in use or kept for the next use."""
    digest: Digest
    """Of the trained state."""


RankLine = HeaderLine | StepLine | NotFiniteLine | EvaluationLine | CheckpointLine | UsageLine | EndLine


def rank_path(folder: Path, rank: int) -> Path:
    """Return the file of a rank."""
    return folder / f"rank-{rank}.jsonl"


def read_rank(path: Path) -> list[RankLine]:
    """Read a rank's lines; none if the rank died before it wrote its header."""
    return read_lines(path, RankLine)


def read_rank_from(path: Path, start: int) -> tuple[list[RankLine], int]:
    """Read a rank's lines from a byte on, while it still writes; return them and where the next ones begin."""
    return read_lines_from(path, RankLine, start)


def header_of(lines: Sequence[RankLine]) -> HeaderLine | None:
    """Return a rank's header, if it came to write one."""
    return lines[0] if lines and isinstance(lines[0], HeaderLine) else None


def steps_of(lines: Sequence[RankLine]) -> tuple[StepLine, ...]:
    """Return a rank's steps, in order."""
    return tuple(line for line in lines if isinstance(line, StepLine))


def evaluations_of(lines: Sequence[RankLine]) -> tuple[EvaluationLine, ...]:
    """Return a rank's evaluations, in order."""
    return tuple(line for line in lines if isinstance(line, EvaluationLine))


def usage_of(lines: Sequence[RankLine]) -> tuple[UsageLine, ...]:
    """Return what a rank used of its machine, in order."""
    return tuple(line for line in lines if isinstance(line, UsageLine))
