"""`lockstep stats` in text: a bar for each resource of each rank, and one line of advice. Pure functions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

from lockstep.cluster.run_stats import RankStats, RunStats
from lockstep.errors import printable
from lockstep.report.units import duration, plural, rate, share, size
from lockstep.train.schema.scalars import PARTS

WIDTH = 20
"""Of a bar."""
FEW = 0.6
"""CPUs that are used, as a share of those asked for, below which they are too many."""
SLOW = 1.2
"""How much longer a rank computes than the median before it is named."""
DATA = 0.3
"""Share of a step spent on data that is worth a word."""
IDLE_GPU = 0.5


def stats_lines(stats: RunStats) -> Iterator[str]:
    """Yield the lines of a run."""
    run = stats.run
    job = f"job {stats.job}, " if stats.job else ""
    where = f" on {', '.join(map(printable, stats.hosts))}" if stats.hosts else ""
    what = f"{printable(run.recipe)}, {run.strategy}, {plural(run.workers, 'worker')}"
    yield f"{run.folder}: {job}{run.state}, {what}{where}"
    loss = "" if run.loss is None else f", loss {run.loss:.4f}"
    speed = "" if stats.samples_per_second is None else f", {rate(stats.samples_per_second)} samples/s"
    left = "" if stats.seconds_left is None else f", {duration(stats.seconds_left)} left"
    yield f"step {run.steps} of {run.planned}{loss}{speed}{left}"
    if run.why:
        yield f"why: {printable(run.why)}"
    yield ""
    most_memory = max((rank.memory or 0 for rank in stats.ranks), default=0)
    for rank in stats.ranks:
        yield from rank_lines(rank, most_memory)
    slowest = stats.slowest
    if slowest is not None:
        work = duration(slowest.work_seconds)
        yield f"slowest rank: {slowest.rank} on {printable(slowest.host)}, {work} of work in a step"
    yield f"advice: {advice(stats)}"


def rank_lines(rank: RankStats, most_memory: int) -> Iterator[str]:
    """Yield a rank's bars; memory is drawn against the largest rank's."""
    head = f"rank {rank.rank} on {printable(rank.host)}"
    yield head
    if rank.cpus_used is not None:
        part = rank.cpus_used / rank.cpus
        yield f"    CPU     {bar(part)} {share(part):>5}  {rank.cpus_used:.1f} of {rank.cpus}"
    if rank.memory is not None:
        yield f"    memory  {bar(rank.memory / max(most_memory, 1))} {size(rank.memory):>9}"
    if rank.gpu is not None:
        yield f"    GPU     {bar(rank.gpu)} {share(rank.gpu):>5}  {size(rank.gpu_memory)}"
    if rank.parts:
        told = ", ".join(f"{name} {share(part)}" for name, part in rank.parts.items() if part >= 0.005)
        yield f"    step    {duration(rank.step_seconds)}: {told}"


def bar(part: float) -> str:
    """Return a bar for a share; more than all of it is a full one."""
    filled = round(min(max(part, 0.0), 1.0) * WIDTH)
    return f"[{'#' * filled}{'.' * (WIDTH - filled)}]"


def advice(stats: RunStats) -> str:
    """Return the one thing to change that matters most."""
    ranks = stats.ranks
    if not ranks or all(rank.cpus_used is None and rank.step_seconds is None for rank in ranks):
        return "nothing was measured yet"
    for rule in (_idle_gpu, _slow_rank, _slow_data, _idle_cpus):
        if told := rule(ranks):
            return told
    return "nothing stands out"


def _idle_gpu(ranks: Sequence[RankStats]) -> str:
    busy = [rank.gpu for rank in ranks if rank.gpu is not None]
    if not busy or statistics.fmean(busy) >= IDLE_GPU:
        return ""
    part, much = _largest_part(ranks)
    return f"the GPUs compute {share(statistics.fmean(busy))} of the time; most of a step is {part} ({share(much)})"


def _slow_rank(ranks: Sequence[RankStats]) -> str:
    work = [(rank.work_seconds, rank) for rank in ranks if rank.work_seconds]
    if len(work) < 2:
        return ""
    middle = statistics.median_low([seconds for seconds, _ in work])
    seconds, slow = max(work, key=lambda one: one[0])
    if seconds < SLOW * middle:
        return ""
    return (
        f"rank {slow.rank} on {printable(slow.host)} computes {seconds / middle:.1f} times as long as the others, "
        "which wait for it: look what else runs there"
    )


def _slow_data(ranks: Sequence[RankStats]) -> str:
    data = statistics.fmean([rank.parts.get("data", 0.0) for rank in ranks])
    return f"{share(data)} of a step is spent on data: load it ahead, or hold it in memory" if data > DATA else ""


def _idle_cpus(ranks: Sequence[RankStats]) -> str:
    used = [rank.cpus_used for rank in ranks if rank.cpus_used is not None]
    if not used:
        return ""
    asked, most = min(rank.cpus for rank in ranks), max(used)
    needed = max(1, math.ceil(most - 0.1))
    if asked < 2 or most > FEW * asked or needed >= asked:
        return ""
    return (
        f"{asked} CPUs asked for each worker, {most:.1f} used: ask for {needed}, or use the rest with more workers or "
        "--threads"
    )


def _largest_part(ranks: Sequence[RankStats]) -> tuple[str, float]:
    means = {part: statistics.fmean([rank.parts.get(part, 0.0) for rank in ranks]) for part in PARTS}
    return max(means.items(), key=lambda one: one[1])
