"""How a run does: from the records of its ranks, also while they are written. Nothing in the folder is believed."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lockstep.runs.listing import ListedRun, State, listed
from lockstep.train.schema.rank_jsonl import StepLine, UsageLine, header_of, rank_path, read_rank, steps_of, usage_of
from lockstep.train.schema.run_json import read_setup
from lockstep.train.schema.scalars import PARTS, Part
from lockstep.train.steps import warmup

TOGETHER: tuple[Part, ...] = ("wait", "exchange")
"""Parts of a step that a rank spends with others."""
RECENT = 50
"""Steps of which the present speed is told."""


@dataclass(frozen=True, kw_only=True)
class RankStats:
    """One rank."""

    rank: int
    """Which."""
    host: str
    """Where it runs."""
    cpus: int
    """CPUs that it may use."""
    cpus_used: float | None
    """CPUs that it used, as a mean; None: it was not sampled."""
    memory: int | None
    """Bytes at the last look."""
    gpu: float | None
    """Share of time in which its GPU computed, as a mean; None without one."""
    gpu_memory: int | None
    """Bytes on its GPU, the most that were seen."""
    step_seconds: float | None
    """Median of its recent steps."""
    work_seconds: float | None
    """The same without waiting for others; None if parts were not measured."""
    parts: dict[Part, float] = field(default_factory=dict)
    """Share of a step by part."""


@dataclass(frozen=True, kw_only=True)
class RunStats:
    """A run."""

    run: ListedRun
    """How it stands."""
    job: str
    """The number of its Slurm job; empty outside of one."""
    hosts: tuple[str, ...]
    """Where it runs."""
    samples_per_second: float | None
    """Over all ranks, of recent steps."""
    seconds_left: float | None
    """Until the last step, at this speed; None when it does not run."""
    ranks: tuple[RankStats, ...]
    """By rank."""

    @property
    def slowest(self) -> RankStats | None:
        """The rank that computes longest; None if that is not known, or there is one rank only."""
        timed = [rank for rank in self.ranks if rank.work_seconds is not None]
        return max(timed, key=lambda rank: rank.work_seconds or 0.0) if len(timed) > 1 else None

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        plain = asdict(self)
        plain["run"] |= {"folder": str(self.run.folder), "state": str(self.run.state)}
        slowest = self.slowest
        return {**plain, "slowest": None if slowest is None else slowest.rank}


def run_stats(folder: Path) -> RunStats:
    """Read a run folder; refuse one that is none, or of another version."""
    setup = read_setup(folder)
    run = listed(folder)
    ranks: list[RankStats] = []
    job = ""
    for rank in range(setup.spec.workers):
        path = rank_path(folder, rank)
        lines = read_rank(path) if path.is_file() else []
        header = header_of(lines)
        if header is None:
            break  # strategies with several workers in one process have one file
        job = job or header.job
        usage = usage_of(lines)
        ranks.append(_rank(rank, header.host, header.cpus, steps_of(lines), usage))
    step = statistics.median([rank.step_seconds for rank in ranks if rank.step_seconds]) if _timed(ranks) else None
    left = run.planned - run.steps
    return RunStats(
        run=run,
        job=job,
        hosts=tuple(dict.fromkeys(rank.host for rank in ranks)),
        samples_per_second=setup.recipe.global_batch / step if step else None,
        seconds_left=left * step if step and run.state is State.running else None,
        ranks=tuple(ranks),
    )


def _timed(ranks: Sequence[RankStats]) -> bool:
    return any(rank.step_seconds for rank in ranks)


def _rank(rank: int, host: str, cpus: int, steps: Sequence[StepLine], usage: Sequence[UsageLine]) -> RankStats:
    recent = steps[warmup(len(steps)) :][-RECENT:]
    measured = [line for line in recent if line.seconds is not None]
    whole = sum(line.total for line in measured)
    shares = {
        part: sum((line.seconds or {}).get(part, 0.0) for line in measured) / whole for part in PARTS if whole > 0
    }
    work = [line.total - sum((line.seconds or {}).get(part, 0.0) for part in TOGETHER) for line in measured]
    busy = [line.gpu for line in usage if line.gpu is not None]
    return RankStats(
        rank=rank,
        host=host,
        cpus=cpus,
        cpus_used=mean_cpus(usage),
        memory=usage[-1].memory if usage else None,
        gpu=statistics.fmean(busy) if busy else None,
        gpu_memory=max((line.gpu_memory or 0 for line in usage), default=0) or None,
        step_seconds=statistics.median(line.total for line in recent) if recent else None,
        work_seconds=statistics.median(work) if work else None,
        parts=shares,
    )


def mean_cpus(usage: Sequence[UsageLine]) -> float | None:
    """Return the mean over time: a look after a long pause counts for all of it."""
    if len(usage) < 2:
        return usage[0].cpus if usage else None
    spans = [max(0.0, after.time - before.time) for before, after in itertools.pairwise(usage)]
    total = sum(spans)
    if not total:
        return statistics.fmean(line.cpus for line in usage)
    return sum(line.cpus * span for line, span in zip(usage[1:], spans, strict=True)) / total
