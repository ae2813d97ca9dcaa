"""`lockstep bench ddp`: a training step without communication, with torch DDP, and with ours, side by side."""

from __future__ import annotations

import json as jsonlib
import statistics
import sys
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from lockstep.bench.ranks.start import run_ranks
from lockstep.train.steps import quartiles

if TYPE_CHECKING:
    from rich.table import Table

BASE, DROP_IN = "torch DDP, gloo", "drop-in, gloo"
WAYS = (
    "no communication",
    BASE,
    "torch DDP, shm",
    DROP_IN,
    "drop-in, shm",
    "lockstep ddp",
)
MANY = 8
"""Workers on the same global batch in the same lanes, to see what the mere number costs."""
TREE, IN_TURN = f"lockstep ddp, {MANY} lanes", f"lockstep ddp, {MANY} lanes, inexact"
MORE = ("drop-in exact, gloo",)
"""Measured where time matters least: with two workers."""
WEIGHED = ("no communication", BASE, "torch DDP, shm", DROP_IN, "lockstep ddp")
"""Whose memory is taken."""
MODELS = ("mlp", "cifar100", "500 small tensors")
WORKERS = (2, 4)
PAIRS = ((BASE, DROP_IN), (IN_TURN, TREE))
"""Close together: each pair has processes of its own, in which no third way takes room in the caches."""
IN_ROUNDS = f"{TREE}, in rounds"
STARTS = 6
"""How often the ranks are started anew for ways whose ratio has a goal. Where weights and the optimizer's state happen
to lie in memory makes one way up to a tenth slower than another while its process lives, and another way the next time;
it often is the way that was made first. So every second start makes them the other way round, a ratio is taken in each
start, and the middle of these counts."""
PAIR_STARTS, PAIR_TURNS = 12, 5
"""Pairs are started more often, and take so many times more turns in all."""
MEMORY_STARTS = 3
"""In how many starts a way's memory is taken: the allocator keeps now more, now less of what is freed."""
ROUNDS = 6
"""How often two and MANY workers take turns; each turn starts its ranks anew."""
DROP_IN_GOALS = {"mlp": 1.0, "cifar100": 1.0, "500 small tensors": 1.05}
STRATEGY_GOALS = {"mlp": 0.55, "cifar100": 0.97, "500 small tensors": 0.9}
EXACT_GOAL, MANY_GOAL, ALONE_GOAL, MEMORY_GOAL = 1.03, 1.4, 0.9, 0.6


@dataclass(frozen=True, kw_only=True)
class Row:
    """One way of training one model."""

    model: str
    """Which model."""
    workers: int
    """How many workers, all on this machine."""
    way: str
    """One of WAYS, or what else is measured."""
    samples: tuple[float, ...]
    """Seconds of a step on the slowest rank, in the order of the repeats."""
    starts: int = 1
    """In how many starts, each with as many samples."""
    memory: float | None = None
    """Bytes of all ranks together above what they had after their imports (PSS), after a few steps; the median."""

    @property
    def seconds(self) -> float:
        """The median."""
        return quartiles(self.samples)[1]

    @property
    def medians(self) -> list[float]:
        """The median of each start."""
        each = len(self.samples) // self.starts
        return [statistics.median(self.samples[at : at + each]) for at in range(0, len(self.samples), each)]


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A ratio of two rows, and what it should be."""

    what: str
    """Which ratio."""
    ratio: float
    """What was found: the quotient of the medians, in the middle one of all starts."""
    goal: float
    """What it should be at most."""
    spread: tuple[float, float] | None = None
    """The lowest and the highest of all starts."""


def in_pair(way: str) -> str:
    """Return how the row of a way is called that was measured in a pair."""
    return f"{way}, in a pair"


def run(workers: list[int], models: list[str], repeats: int) -> list[Row]:
    """Time every way in turn, `repeats` times over; then take each one's memory in processes of its own.

    With the fewest workers, whose ratios have goals, in STARTS processes, one after another.
    """
    rows = []
    for count in workers:
        for model in models:
            few = count == min(workers)
            ways = [*WAYS, *MORE] if few else list(WAYS)
            timed = _time(model, count, ways, repeats, STARTS if few else 1)
            for way, row in timed.items():
                rows.append(replace(row, memory=_memory(model, count, way) if few and way in WEIGHED else None))
    return rows


def _memory(model: str, workers: int, way: str) -> float:
    plan = {"model": model, "repeats": 1, "ways": [way], "memory": True}
    found: list[float] = [run_ranks("lockstep.bench.ranks.ddp", workers, plan)["memory"] for _ in range(MEMORY_STARTS)]
    return statistics.median(found)


def run_pairs(few: int, models: list[str], repeats: int) -> list[Row]:
    """Time PAIRS on `few` workers; then `few` and MANY workers in turn, on the same lanes."""
    rows = []
    for model in models:
        for pair in PAIRS:
            timed = _time(model, few, list(pair), PAIR_TURNS * repeats, PAIR_STARTS)
            rows += [replace(row, way=in_pair(way)) for way, row in timed.items()]
        found: dict[int, list[float]] = {few: [], MANY: []}
        for _ in range(ROUNDS):
            for count, samples in found.items():
                samples += _time(model, count, [TREE], -(-repeats // ROUNDS))[TREE].samples
        rows += [
            Row(model=model, workers=count, way=IN_ROUNDS, samples=tuple(samples), starts=ROUNDS)
            for count, samples in found.items()
        ]
    return rows


def _time(model: str, workers: int, ways: list[str], repeats: int, starts: int = 1) -> dict[str, Row]:
    samples: dict[str, list[float]] = {way: [] for way in ways}
    for start in range(starts):
        plan = {"model": model, "repeats": -(-repeats // starts), "ways": ways, "start": start}
        for way, seconds in run_ranks("lockstep.bench.ranks.ddp", workers, plan)["seconds"].items():
            samples[way] += seconds
    return {
        way: Row(model=model, workers=workers, way=way, samples=tuple(seconds), starts=starts)
        for way, seconds in samples.items()
    }


def goals(rows: list[Row]) -> list[Goal]:
    """Return the ratios that have a goal, as far as their rows are there."""
    known = {(row.model, row.workers, row.way): row for row in rows}
    found = []

    def add(what: str, over: Row | None, under: Row | None, goal: float) -> None:
        if over is not None and under is not None:
            each = sorted(mine / theirs for mine, theirs in zip(over.medians, under.medians, strict=True))
            spread = (each[0], each[-1])
            found.append(Goal(what=what, ratio=statistics.median(each), goal=goal, spread=spread))

    for model in MODELS:
        gloo, ours = (known.get((model, 2, way)) for way in (BASE, "lockstep ddp"))
        add(f"{model}: strategy ddp / torch DDP on gloo", ours, gloo, STRATEGY_GOALS[model])
        gloo, drop_in = (known.get((model, 2, in_pair(way))) for way in (BASE, DROP_IN))
        add(f"{model}: drop-in / torch DDP, both on gloo", drop_in, gloo, DROP_IN_GOALS[model])
        tree, in_turn = (known.get((model, 2, in_pair(way))) for way in (TREE, IN_TURN))
        add(f"{model}: strategy ddp, exact / inexact, 4 lanes a worker, in the arena", tree, in_turn, EXACT_GOAL)
        many, few = (known.get((model, workers, IN_ROUNDS)) for workers in (MANY, 2))
        add(f"{model}: strategy ddp on {MANY} workers / on 2, same batch and lanes", many, few, MANY_GOAL)
    ours, local = (known.get(("mlp", 2, way)) for way in ("lockstep ddp", "no communication"))
    add("mlp: strategy ddp / no communication", ours, local, ALONE_GOAL)
    memory = {(row.model, row.way): row.memory for row in rows if row.memory}
    if ("mlp", BASE) in memory and ("mlp", "lockstep ddp") in memory:
        ratio = memory["mlp", "lockstep ddp"] / memory["mlp", BASE]
        found.append(Goal(what="mlp: memory of strategy ddp / torch DDP on gloo", ratio=ratio, goal=MEMORY_GOAL))
    return found


def table(rows: list[Row]) -> Table:
    """Return the rows with their ratios to torch DDP on gloo."""
    from rich.table import Table

    made = Table(title="time of a training step; ratios to torch DDP on gloo", title_justify="left")
    for heading in ("model", "W", "way", "step", "quarter points", "ratio", "memory of all ranks", "ratio"):
        made.add_column(heading, justify="left" if heading in ("model", "way") else "right")
    for row in rows:
        alike = [r for r in rows if (r.model, r.workers, r.way) == (row.model, row.workers, BASE)]
        base = alike[0] if alike else None
        memory = "" if row.memory is None else f"{row.memory / 2**20:.0f} MiB"
        ratio = f"{row.memory / base.memory:.2f}" if row.memory and base and base.memory else ""
        low, _, high = (f"{value * 1e3:.1f}" for value in quartiles(row.samples))
        made.add_row(
            row.model,
            str(row.workers),
            row.way,
            f"{row.seconds * 1e3:.1f} ms",
            f"{low} to {high}",
            f"{row.seconds / base.seconds:.2f}" if base else "",
            memory,
            ratio,
        )
    return made


def goal_table(found: list[Goal]) -> Table:
    """Return the ratios beside what they should be."""
    from rich.table import Table

    made = Table(title="the figures that have a goal", title_justify="left")
    for heading in ("what", "ratio", "of single starts", "at most"):
        made.add_column(heading, justify="left" if heading == "what" else "right")
    for one in found:
        spread = "" if one.spread is None else f"{one.spread[0]:.2f} to {one.spread[1]:.2f}"
        made.add_row(one.what, f"{one.ratio:.2f}", spread, f"{one.goal:.2f}")
    return made


def main(*, json: bool, repeats: int) -> None:
    """Run all of it and print the tables, or JSON."""
    rows = run(list(WORKERS), list(MODELS), repeats) + run_pairs(min(WORKERS), list(MODELS), repeats)
    if json:
        found = {
            "rows": [{**asdict(row), "seconds": row.seconds} for row in rows],
            "goals": [asdict(goal) for goal in goals(rows)],
        }
        sys.stdout.write(jsonlib.dumps(found, indent=1) + "\n")
        return
    from lockstep.report.render import console

    console().print(table(rows))
    console().print(goal_table(goals(rows)))
