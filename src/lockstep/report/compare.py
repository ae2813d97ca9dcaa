"""Rows of a comparison: the repeats of each way, side by side."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lockstep.report.collect import Run


@dataclass(frozen=True, kw_only=True)
class Row:
    """One way of training the recipe, over its repeats."""

    name: str
    """The strategy, and what else tells it from its neighbours."""
    workers: int
    """How many."""
    threads: int
    """Of each worker."""
    repeats: int = 0
    """How many runs ended well."""
    seconds: float | None = None
    """Training time, the median of the repeats."""
    seconds_spread: tuple[float, float] | None = None
    """The fastest and the slowest repeat."""
    step_seconds: float | None = None
    """Median time of a step, the median of the repeats."""
    samples_per_second: float | None = None
    """Over all workers."""
    speed_up: float | None = None
    """Against `single` with the same threads."""
    peak_memory: tuple[int, ...] = ()
    """Bytes, by rank."""
    memory_measure: str = ""
    """What was measured."""
    loss: float | None = None
    """Of the last step."""
    metrics: dict[str, float] | None = None
    """Evaluated after the last step."""
    digest: str = ""
    """Of the trained state; empty if the repeats differ."""
    depends_on_workers: str = ""
    """What makes the digest depend on the number of workers, if anything does."""
    why_not: str = ""
    """Why it did not run, if it did not."""

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def summarise(name: str, workers: int, threads: int, runs: Sequence[Run], why_not: str = "") -> Row:
    """Return the row of one way from its finished runs."""
    if not runs:
        return Row(name=name, workers=workers, threads=threads, why_not=why_not or "not run")
    results = [run.result for run in runs]
    seconds = [float(result["seconds"]) for result in results]
    digests = {str(result["digest"]) for result in results}
    last = results[-1]
    return Row(
        name=name,
        workers=workers,
        threads=threads,
        repeats=len(runs),
        seconds=statistics.median(seconds),
        seconds_spread=(min(seconds), max(seconds)),
        step_seconds=statistics.median(float(result["step_seconds"]) for result in results),
        samples_per_second=statistics.median(float(result["samples_per_second"]) for result in results),
        peak_memory=tuple(max(ranks) for ranks in zip(*(result["peak_memory"] for result in results), strict=True)),
        memory_measure=str(last["memory_measure"]),
        loss=float(last["loss"]),
        metrics=dict(last["metrics"]),
        digest=digests.pop() if len(digests) == 1 else "",
        depends_on_workers=str(last.get("depends_on_workers", "")),
        why_not=why_not,
    )


def with_speed_up(rows: Sequence[Row]) -> list[Row]:
    """Fill in the speed-up over the first row that is `single`."""
    base = next((row.seconds for row in rows if row.name == "single" and row.seconds), None)
    return [Row(**{**row.__dict__, "speed_up": base / row.seconds}) if base and row.seconds else row for row in rows]
