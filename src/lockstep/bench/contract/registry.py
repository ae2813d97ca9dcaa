"""Which benchmarks there are: each module `bench_NAME` of `lockstep.bench` describes one in BENCHMARK."""

from __future__ import annotations

import pkgutil

from lockstep import bench
from lockstep.bench.contract.benchmark import Benchmark
from lockstep.registry import Registry

PREFIX = "bench_"

BENCHMARKS = Registry(
    "benchmark",
    Benchmark,
    value="BENCHMARK",
    modules=[
        f"{bench.__name__}.{module.name}"
        for module in pkgutil.iter_modules(bench.__path__)
        if module.name.startswith(PREFIX)
    ],
    group="lockstep.benchmarks",
)
"""In the order of the alphabet; other packages add theirs by entry points."""
