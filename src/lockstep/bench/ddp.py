"""`lockstep bench ddp`: a training step without communication, with torch DDP, and with ours, side by side."""

from __future__ import annotations

import json as jsonlib
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from lockstep.bench.ranks import run_ranks
from lockstep.train.steps import quartiles

if TYPE_CHECKING:
    from rich.table import Table

BASE = "torch DDP, gloo"
WAYS = (
    "no communication",
    BASE,
    "torch DDP, shm",
    "drop-in, gloo",
    "drop-in, shm",
    "lockstep ddp",
)
MANY = 8
"""Workers on the same global batch in the same lanes, to see what the mere number costs."""
TREE, IN_TURN = f"lockstep ddp, {MANY} lanes", f"lockstep ddp, {MANY} lanes, inexact"
MORE = ("drop-in exact, gloo",)
"""Measured where time matters least: with two workers."""
WEIGHED = ("no communication", BASE, "torch DDP, shm", "drop-in, gloo", "lockstep ddp")
"""Whose memory is taken."""
MODELS = ("mlp", "cifar100", "500 small tensors")
WORKERS = (2, 4)
IN_ROUNDS = f"{TREE}, in rounds"
PAIRS = 2
"""Exact and inexact differ by little: they take turns this much more often."""
STARTS = 5
"""How often the ranks are started anew for ways whose ratio has a goal. Where weights and the optimizer's state happen
to lie in memory makes one way a tenth slower than another while its process lives, and another way the next time."""
ROUNDS = 3
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
    """One of WAYS."""
    samples: tuple[float, ...]
    """Seconds of a step on the slowest rank, in the order of the repeats."""
    memory: int | None = None
    """Bytes of all ranks together above what they had after their imports (PSS), after a few steps."""

    @property
    def seconds(self) -> float:
        """The median."""
        return quartiles(self.samples)[1]


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A ratio of two rows, and what it should be."""

    what: str
    """Which ratio."""
    ratio: float
    """What was found: the quotient of the medians."""
    goal: float
    """What it should be at most."""


def run(workers: list[int], models: list[str], repeats: int) -> list[Row]:
    """Time every way in turn, `repeats` times over; then take each one's memory in processes of its own.

    With the fewest workers, whose ratios have goals, in STARTS processes, one after another.
    """
    rows = []
    for count in workers:
        for model in models:
            ways = [*WAYS, *MORE] if count == min(workers) else list(WAYS)
            samples = _time(model, count, ways, repeats, STARTS if count == min(workers) else 1)
            for way in ways:
                plan = {"model": model, "repeats": 1, "ways": [way], "memory": True}
                weighed = count == min(workers) and way in WEIGHED
                memory = run_ranks("lockstep.bench.ddp_rank", count, plan)["memory"] if weighed else None
                rows.append(Row(model=model, workers=count, way=way, samples=samples[way], memory=memory))
    return rows


def run_lanes(few: int, models: list[str], repeats: int) -> list[Row]:
    """Time `few` workers on MANY lanes, exact and inexact in turn; then `few` and MANY workers in turn."""
    rows = []
    for model in models:
        samples_by_way = _time(model, few, [TREE, IN_TURN], PAIRS * repeats, STARTS)
        rows += [Row(model=model, workers=few, way=way, samples=samples) for way, samples in samples_by_way.items()]
        found: dict[int, list[float]] = {few: [], MANY: []}
        for _ in range(ROUNDS):
            for count, samples in found.items():
                samples.extend(_time(model, count, [TREE], -(-repeats // ROUNDS))[TREE])
        rows += [Row(model=model, workers=n, way=IN_ROUNDS, samples=tuple(samples)) for n, samples in found.items()]
    return rows


def _time(model: str, workers: int, ways: list[str], repeats: int, starts: int = 1) -> dict[str, tuple[float, ...]]:
    samples: dict[str, list[float]] = {way: [] for way in ways}
    for start in range(starts):
        plan = {"model": model, "repeats": -(-repeats // starts), "ways": ways, "start": start}
        for way, seconds in run_ranks("lockstep.bench.ddp_rank", workers, plan)["seconds"].items():
            samples[way] += seconds
    return {way: tuple(seconds) for way, seconds in samples.items()}


def goals(rows: list[Row]) -> list[Goal]:
    """Return the ratios that have a goal, as far as their rows are there."""
    known = {(row.model, row.workers, row.way): row for row in rows}
    found = []

    def add(what: str, over: Row | None, under: Row | None, goal: float) -> None:
        if over is not None and under is not None:
            found.append(Goal(what=what, ratio=over.seconds / under.seconds, goal=goal))

    for model in MODELS:
        gloo = known.get((model, 2, BASE))
        ours, drop_in = known.get((model, 2, "lockstep ddp")), known.get((model, 2, "drop-in, gloo"))
        add(f"{model}: strategy ddp / torch DDP on gloo", ours, gloo, STRATEGY_GOALS[model])
        add(f"{model}: drop-in / torch DDP, both on gloo", drop_in, gloo, DROP_IN_GOALS[model])
        tree, in_turn = known.get((model, 2, TREE)), known.get((model, 2, IN_TURN))
        add(f"{model}: strategy ddp, exact / inexact, 4 lanes a worker, in the arena", tree, in_turn, EXACT_GOAL)
        many, few = known.get((model, MANY, IN_ROUNDS)), known.get((model, 2, IN_ROUNDS))
        add(f"{model}: strategy ddp on {MANY} workers / on 2, same batch and lanes", many, few, MANY_GOAL)
    ours, alone = known.get(("mlp", 2, "lockstep ddp")), known.get(("mlp", 2, "no communication"))
    add("mlp: strategy ddp / no communication", ours, alone, ALONE_GOAL)
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
    for heading in ("what", "ratio", "at most"):
        made.add_column(heading, justify="left" if heading == "what" else "right")
    for one in found:
        made.add_row(one.what, f"{one.ratio:.2f}", f"{one.goal:.2f}")
    return made


def main(*, json: bool, repeats: int) -> None:
    """Run all of it and print the tables, or JSON."""
    rows = run(list(WORKERS), list(MODELS), repeats) + run_lanes(min(WORKERS), list(MODELS), repeats)
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
