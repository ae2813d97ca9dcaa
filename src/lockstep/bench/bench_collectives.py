"""`lockstep bench collectives`: all_reduce over gloo, shm, shm in place, and what copying the bytes takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lockstep.bench.contract import (
    Benchmark,
    BenchOption,
    BenchSettings,
    Cell,
    Figure,
    Goal,
    Measurements,
    Quantity,
    Table,
    TableColumn,
    Tell,
    Unit,
    at_least,
    at_most,
    figure,
    median,
    repeats,
    seconds,
)
from lockstep.bench.ranks.processes import run_ranks

KIB, MIB = 1 << 10, 1 << 20
SMALL, LARGE = 64 * KIB, 25 * MIB
GLOO, SHM, IN_PLACE, COPY = WAYS = ("gloo", "shm", "shm in place", "copy limit")
DDP: Final = ("torch DDP on gloo", "torch DDP on shm")
SMALL_GOALS = {2: 10.0, 4: 25.0}
LARGE_GOAL, IN_PLACE_GOAL, COPY_GOAL, DDP_GOAL = 3.0, 6.0, 1.5, 0.9
SPREAD = "fastest to slowest repeat"

Timings = Mapping[tuple[int, int, str], Quantity]
"""Seconds by workers, bytes and way: the median call of a repeat on the slowest rank, and of these the median."""


def run(settings: BenchSettings, tell: Tell) -> Measurements:
    """Measure every way at every size in turn, for each number of workers."""
    timings: dict[tuple[int, int, str], Quantity] = {}
    for workers in settings[WORKERS]:
        tell(f"{workers} workers: start")
        plan = {"sizes": settings[SIZES], "repeats": settings[REPEATS]}
        for timed in run_ranks("lockstep.bench.ranks.collectives_rank", workers, plan, tell=tell):
            timings[workers, timed["size"], timed["way"]] = median(timed["seconds"])
    return Measurements(tables=(calls_table(timings), steps_table(timings)), figures=tuple(figures(timings)))


def figures(timings: Timings) -> list[Figure]:
    """Return the ratios that the backend aims at, as far as both sides were measured."""
    judged: list[Figure] = []

    def add(workers: int, size: int, pair: tuple[str, str], goal: Goal) -> None:
        """`pair` is (over, under) of the ratio; ours is the one that should be small."""
        over, under = (timings.get((workers, size, way)) for way in pair)
        if over is None or under is None:
            return
        each = [one / other for one, other in zip(over.samples, under.samples, strict=True)]
        ratio = Quantity(value=over.value / under.value, low=min(each), high=max(each))
        sides = [seconds(way, measured) for way, measured in zip(pair, (over, under), strict=True)]
        ours, theirs = reversed(sides) if goal.at_least else sides
        what = f"{pair[0]} / {pair[1]}, {readable(size)}, {workers} workers"
        judged.append(figure(what, ours, theirs, goal, ratio, "single repeats"))

    for workers, size in sorted({(workers, size) for workers, size, _ in timings}):
        if size <= SMALL and workers in SMALL_GOALS:
            add(workers, size, (GLOO, SHM), at_least(SMALL_GOALS[workers]))
        if size == LARGE and workers in SMALL_GOALS:
            add(workers, size, (GLOO, SHM), at_least(LARGE_GOAL))
            add(workers, size, (GLOO, IN_PLACE), at_least(IN_PLACE_GOAL))
        if workers == 2:
            add(workers, size, (DDP[1], DDP[0]), at_most(DDP_GOAL))
            if size == LARGE:
                add(workers, size, (IN_PLACE, COPY), at_most(COPY_GOAL))
    return judged


def readable(size: int) -> str:
    """Return a byte count as people write it."""
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size / unit:g} {name}" if size % unit == 0 else f"{size / unit:.1f} {name}"
    return f"{size} B"


def calls_table(timings: Timings) -> Table:
    """Return the times of one call."""
    columns = [TableColumn(name=way, unit=Unit.SECONDS, spread=SPREAD) for way in WAYS]
    ratios = [TableColumn(name=f"{GLOO} / {way}", unit=Unit.RATIO) for way in (SHM, IN_PLACE)]
    rows: list[dict[str, Cell]] = []
    for workers, size in sorted({(workers, size) for workers, size, way in timings if way in WAYS}):
        times = {way: timings[workers, size, way] for way in WAYS}
        row = {f"{GLOO} / {way}": Quantity(value=times[GLOO].value / times[way].value) for way in (SHM, IN_PLACE)}
        rows.append({"workers": workers, "message": readable(size), **times, **row})
    return Table(
        name="calls",
        title="all_reduce, median time of one call",
        columns=(TableColumn(name="workers"), TableColumn(name="message"), *columns, *ratios),
        rows=tuple(rows),
    )


def steps_table(timings: Timings) -> Table:
    """Return the times of a step of stock DDP."""
    columns = [TableColumn(name=way, unit=Unit.SECONDS, spread=SPREAD) for way in DDP]
    rows: list[dict[str, Cell]] = []
    for workers, size in sorted({(workers, size) for workers, size, way in timings if way in DDP}):
        gloo, shm = (timings[workers, size, way] for way in DDP)
        ratio = Quantity(value=shm.value / gloo.value)
        rows.append({"workers": workers, DDP[0]: gloo, DDP[1]: shm, "shm / gloo": ratio})
    return Table(
        name="steps",
        title="torch DDP on an MLP of 6.5 M parameters, median time of one step",
        columns=(TableColumn(name="workers"), *columns, TableColumn(name="shm / gloo", unit=Unit.RATIO)),
        rows=tuple(rows),
    )


WORKERS = BenchOption(
    name="workers", help="How many ranks, all on this machine.", default=(2, 4), quick=(2,), minimum=2
)
SIZES = BenchOption(
    name="sizes",
    help="Bytes of one rank's message.",
    default=(256, 4 * KIB, SMALL, MIB, LARGE, 64 * MIB),
    quick=(256, LARGE),
    minimum=4,
)
REPEATS = repeats(20)
BENCHMARK = Benchmark(
    name="collectives",
    help="Time of all_reduce on gloo, on shm, and in place in shared memory, beside a plain copy of the bytes",
    options=(WORKERS, SIZES, REPEATS),
    run=run,
)
