"""`lockstep bench measure`: what it costs to divide every step into its parts, and to look at what a worker uses."""

from __future__ import annotations

import statistics

from lockstep.bench.contract import (
    Benchmark,
    BenchOption,
    BenchSettings,
    Cell,
    Measurements,
    Quantity,
    Table,
    TableColumn,
    Tell,
    Unit,
    at_most,
    figure,
    median,
    repeats,
    seconds,
)
from lockstep.bench.ranks.processes import run_ranks
from lockstep.train.usage_sampler import SECONDS

WAYS = {"single": (1, None), "ddp": (2, "shm"), "torch-ddp": (2, "gloo")}
"""Workers and backend by strategy."""
GOAL = 0.02
USE = at_most(0.01)
SPREAD = "quartiles"
COLUMNS = (
    TableColumn(name="strategy"),
    TableColumn(name="workers"),
    TableColumn(name="measured", unit=Unit.SECONDS, spread="fastest to slowest"),
    TableColumn(name="--no-measure", unit=Unit.SECONDS, spread="fastest to slowest"),
    TableColumn(name="cost", unit=Unit.SHARE, spread=f"{SPREAD} of the pairs"),
)


def run(settings: BenchSettings, tell: Tell) -> Measurements:
    """Time both sides in turn in the same processes, so that a pair sees the same machine."""
    rows: list[dict[str, Cell]] = []
    figures = []
    for strategy in settings[STRATEGIES]:
        workers, backend = WAYS[strategy]
        tell(f"{strategy} on {workers} workers" if workers > 1 else strategy)
        plan = {"strategy": strategy, "backend": backend, "repeats": settings[REPEATS], "warm_up": settings[WARM_UP]}
        samples = run_ranks("lockstep.bench.ranks.measure_rank", workers, plan)
        cost = pair_cost(samples["measured"], samples["plain"])
        ours, theirs = median(samples["measured"]), median(samples["plain"])
        rows.append({"strategy": strategy, "workers": workers, "measured": ours, "--no-measure": theirs, "cost": cost})
        ratio = Quantity(value=1.0 + cost.value, low=1.0 + (cost.low or 0.0), high=1.0 + (cost.high or 0.0))
        figures.append(
            figure(
                f"{strategy}: step, measured / --no-measure",
                seconds("measured", ours),
                seconds("--no-measure", theirs),
                at_most(1.0 + GOAL),
                ratio,
                f"{SPREAD} of the pairs",
            )
        )
    tell("looks at what a worker uses")
    looks = run_ranks("lockstep.bench.ranks.usage_rank", 1, {"repeats": settings[REPEATS]})
    look, between = median(looks["look"]), median([SECONDS])
    name = "a look at what is used / time between two"
    figures.append(figure(name, seconds("a look", look), seconds("between two", between), USE))
    title = "mlp: time of a step with and without measuring"
    table = Table(name="steps", title=title, columns=COLUMNS, rows=tuple(rows))
    return Measurements(tables=(table,), figures=tuple(figures))


def pair_cost(measured: list[float], plain: list[float]) -> Quantity:
    """Return how much longer the measured one took, as a share: the median over pairs of neighbours in time."""
    pairs = [one / other - 1.0 for one, other in zip(measured, plain, strict=True)]
    low, middle, high = statistics.quantiles(pairs, n=4) if len(pairs) > 1 else pairs * 3
    return Quantity(value=middle, low=low, high=high, samples=tuple(pairs))


STRATEGIES = BenchOption(
    name="strategies", help="Which ways to train.", default=tuple(WAYS), quick=("single", "ddp"), choices=tuple(WAYS)
)
REPEATS = repeats(40, quick=2)
WARM_UP = BenchOption(name="warm-up", help="Repeats before these that are not counted.", default=3, quick=0, minimum=0)
BENCHMARK = Benchmark(
    name="measure",
    help="Time of a training step with all its parts measured, and with --no-measure",
    options=(STRATEGIES, REPEATS, WARM_UP),
    run=run,
)
