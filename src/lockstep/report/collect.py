"""Reading run folders: whole and believable, or refused with the file and the line."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

from lockstep.errors import BadInput
from lockstep.report.consistency import check_finished, rank_files
from lockstep.report.wording import written
from lockstep.train.records import AGAIN
from lockstep.train.resume import attempts
from lockstep.train.schema.fingerprints_jsonl import FingerprintLine, read_fingerprints
from lockstep.train.schema.rank_jsonl import (
    EvaluationLine,
    NotFiniteLine,
    RankLine,
    StepLine,
    UsageLine,
    evaluations_of,
    header_of,
    read_rank,
    steps_of,
    usage_of,
)
from lockstep.train.schema.result_json import NAME as RESULT
from lockstep.train.schema.result_json import Done, Failed, read_result
from lockstep.train.schema.run_json import Setup, read_setup


@dataclass(frozen=True, kw_only=True)
class Span:
    """A stretch of one rank's time."""

    rank: int
    """Whose."""
    step: int
    """In which step."""
    name: str
    """The part of the step."""
    start: float
    """Seconds since the epoch, by the clock of the rank's host."""
    seconds: float
    """How long."""
    lane: int | None = None
    """For which lane, where the model is cut; None for what is not of one lane."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a run folder says."""

    folder: Path
    """Where it was read."""
    setup: Setup
    """run.json."""
    result: Done | Failed | None = None
    """result.json; None if the run has not ended, or was killed."""
    losses: tuple[float, ...] = ()
    """The global loss of each step, those before a checkpoint included: the ranks' means, weighted."""
    evaluations: tuple[EvaluationLine, ...] = ()
    """In order, those before a checkpoint included, as rank 0 wrote them."""
    steps: tuple[tuple[StepLine, ...], ...] = ()
    """The step lines of each rank, in order."""
    fingerprints: tuple[FingerprintLine, ...] = ()
    """Of the weights at a few steps, if they were taken."""
    hosts: tuple[str, ...] = ()
    """Where each rank ran."""
    usage: tuple[tuple[UsageLine, ...], ...] = ()
    """What each rank used of its machine, in order."""


@dataclass(frozen=True, kw_only=True)
class FinishedRun(Run):
    """A run that ended well; its files agree with each other."""

    result: Done
    """result.json."""


def read_run(folder: Path) -> Run:
    """Read one run folder whole, or refuse it and say what is wrong.

    A run without a result has not ended, or was killed: its records may still be written, and are left alone.
    """
    setup = read_setup(folder)
    if not (folder / RESULT).exists():
        return Run(folder=folder, setup=setup)
    result = read_result(folder)
    paths = rank_files(folder, len(result.ranks) if isinstance(result, Done) else None)
    ranks = [read_rank(path) for path in paths]
    steps = tuple(steps_of(lines) for lines in ranks)
    tries = [*_earlier(folder), ranks]
    losses, evaluations = tuple(global_losses(tries)), tuple(all_evaluations(tries))
    hosts = tuple(header.host if (header := header_of(lines)) else "" for lines in ranks)
    fingerprints = read_fingerprints(folder)
    usage = tuple(usage_of(lines) for lines in ranks)
    if isinstance(result, Failed):
        return Run(
            folder=folder,
            setup=setup,
            result=result,
            losses=losses,
            evaluations=evaluations,
            steps=steps,
            fingerprints=fingerprints,
            hosts=hosts,
            usage=usage,
        )
    check_finished(folder, setup, result, list(zip(paths, ranks, strict=True)))
    return FinishedRun(
        folder=folder,
        setup=setup,
        result=result,
        losses=losses,
        evaluations=evaluations,
        steps=steps,
        fingerprints=fingerprints,
        hosts=hosts,
        usage=usage,
    )


def read_finished(folder: Path) -> FinishedRun:
    """Read the folder of a run that ended well; refuse any other."""
    run = read_run(folder)
    if not isinstance(run, FinishedRun):
        raise BadInput(f"the run in {folder} did not end well: {why_unfinished(run)}. {AGAIN}")
    return run


def why_unfinished(run: Run) -> str:
    """Return why a run that is not finished is not."""
    if isinstance(run.result, Failed):
        return run.result.why
    return f"it has not ended, or was killed: {written(run.folder)} has no {RESULT}"


def spans(run: Run) -> tuple[Span, ...]:
    """Return the stretches of time that the ranks recorded for a few steps."""
    return tuple(
        Span(rank=rank, step=line.step, name=name, start=line.began + start, seconds=seconds, lane=lane)
        for rank, lines in enumerate(run.steps)
        for line in lines
        for (name, start, seconds), lane in zip(line.spans or (), line.span_lanes or repeat(None), strict=False)
    )


Ranks = Sequence[Sequence[RankLine]]
"""The lines of each rank of one attempt."""


def _earlier(folder: Path) -> list[Ranks]:
    """Return the lines of the attempts before the last, in order."""
    return [[read_rank(path) for path in rank_files(attempt, None)] for attempt in attempts(folder)]


def global_losses(tries: Iterable[Ranks]) -> list[float]:
    """Combine the ranks' records into one loss per step; a step that was done again counts as it was last."""
    sums: dict[int, tuple[float, float]] = {}
    for ranks in tries:
        again: dict[int, tuple[float, float]] = {}
        # The stages of a replica work on the same lanes: each lane's loss counts once.
        counted = [lines for lines in ranks if (header := header_of(lines)) and header.stage == 0]
        for line in (line for lines in counted for line in lines):
            if isinstance(line, StepLine | NotFiniteLine):
                loss, weight = (line.loss, line.weight) if isinstance(line, StepLine) else (math.nan, 0.0)
                total, weights = again.get(line.step, (0.0, 0.0))
                again[line.step] = total + loss * weight, weights + weight
        sums |= again
    return [total / weight for _, (total, weight) in sorted(sums.items()) if weight]


def all_evaluations(tries: Iterable[Ranks]) -> list[EvaluationLine]:
    """Return the evaluations of all attempts; one that was done again counts as it was last."""
    last = {line.steps: line for ranks in tries for lines in ranks[:1] for line in evaluations_of(lines)}
    return [line for _, line in sorted(last.items())]
