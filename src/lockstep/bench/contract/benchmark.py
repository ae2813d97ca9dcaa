"""A benchmark describes itself; running it is the same for all of them."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

from lockstep.bench.contract.measurements import Measurements, Result
from lockstep.bench.contract.options import BenchOption, BenchSettings
from lockstep.errors import BadInput
from lockstep.registry import Description
from lockstep.train.setup import cpu_model
from lockstep.version import __version__

Tell = Callable[[str], None]
"""Called with one line at the start of each phase."""


@dataclass(frozen=True, kw_only=True)
class Benchmark(Description):
    """What a module of `lockstep.bench` calls BENCHMARK. The module imports no torch before `run`."""

    options: tuple[BenchOption[Any], ...]
    """`repeats` among them."""
    run: Callable[[BenchSettings, Tell], Measurements]
    """Measure all sides in turn."""
    check: Callable[[BenchSettings], None] = lambda _: None
    """Refuse settings that do not fit together, before anything starts."""


def repeats(default: int, *, quick: int = 1, what: str = "How often each side is timed, in turn.") -> BenchOption[int]:
    """Return the option that every benchmark has."""
    return BenchOption(name="repeats", help=what, default=default, quick=quick)


def measure(benchmark: Benchmark, settings: BenchSettings, tell: Tell) -> Result:
    """Run a benchmark; a quick run judges no goal."""
    if (reason := benchmark.unavailable()) is not None:
        raise BadInput(reason)
    benchmark.check(settings)
    began = time.perf_counter()
    measured = benchmark.run(settings, tell)
    figures = measured.figures
    if settings.quick:
        figures = tuple(replace(figure, reached=None) for figure in figures)
    return Result(
        tables=measured.tables,
        figures=figures,
        notes=measured.notes,
        benchmark=benchmark.name,
        quick=settings.quick,
        settings=dict(settings.values),
        environment=environment(),
        seconds=time.perf_counter() - began,
    )


def environment() -> dict[str, str | int]:
    """Return what the numbers depend on and a reader cannot see."""
    return {
        "lockstep": __version__,
        "torch": metadata.version("torch"),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "processor": cpu_model(),
        "cpus": len(os.sched_getaffinity(0)),
    }
