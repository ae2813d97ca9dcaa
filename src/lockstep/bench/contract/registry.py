"""Which benchmarks there are: every module of `lockstep.bench` is one, and describes itself in BENCHMARK."""

from __future__ import annotations

import pkgutil

from lockstep import bench
from lockstep.bench.contract.benchmark import Benchmark
from lockstep.registry import Registry

BENCHMARKS = Registry(
    "benchmark",
    Benchmark,
    value="BENCHMARK",
    modules=[f"{bench.__name__}.{module.name}" for module in pkgutil.iter_modules(bench.__path__) if not module.ispkg],
    group="lockstep.benchmarks",
)
"""In the order of the alphabet; other packages add theirs by entry points."""
