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
TREE, IN_TURN = "lockstep ddp, 4 lanes each", "lockstep ddp, 4 lanes each, inexact"
EXACT = ("drop-in exact, gloo", TREE, IN_TURN)
"""Measured where time matters least: with two workers."""
WEIGHED = ("no communication", BASE, "torch DDP, shm", "drop-in, gloo", "lockstep ddp")
"""Whose memory is taken."""
MODELS = ("mlp", "cifar100", "500 small tensors")
WORKERS = (2, 4)
MANY = 8
"""Workers on the same global batch, to see what the mere number costs."""
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
    seconds: float
    """Median time of a step on the slowest rank."""
    spread: tuple[float, float]
    """The quarter points of all samples."""
    memory: int | None = None
    """Bytes of all ranks together above what they had after their imports (PSS), after a few steps."""


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A ratio of two rows, and what it should be."""

    what: str
    """Which ratio."""
    ratio: float
    """What was found."""
    goal: float
    """What it should be at most."""


def run(workers: list[int], models: list[str], repeats: int) -> list[Row]:
    """Time every way in turn, `repeats` times over; then take each one's memory in processes of its own."""
    rows = []
    for count in workers:
        for model in models:
            ways = ["lockstep ddp"] if count == MANY else [*WAYS, *EXACT] if count == min(workers) else list(WAYS)
            plan = {"model": model, "repeats": repeats}
            samples = run_ranks("lockstep.bench.ddp_rank", count, {**plan, "ways": ways})
            for way in ways:
                alone = {**plan, "ways": [way], "repeats": 1, "memory": True}
                weighed = count == min(workers) and way in WEIGHED
                memory = run_ranks("lockstep.bench.ddp_rank", count, alone)["memory"] if weighed else None
                times = samples["seconds"][way]
                low, middle, high = quartiles(times)
                rows.append(Row(model=model, workers=count, way=way, seconds=middle, spread=(low, high), memory=memory))
    return rows


def goals(rows: list[Row]) -> list[Goal]:
    """Return the ratios that have a goal, as far as their rows are there."""
    seconds = {(row.model, row.workers, row.way): row.seconds for row in rows}
    found = []

    def add(what: str, over: tuple[str, int, str], under: tuple[str, int, str], goal: float) -> None:
        if over in seconds and under in seconds:
            found.append(Goal(what=what, ratio=seconds[over] / seconds[under], goal=goal))

    for model in MODELS:
        gloo = (model, 2, BASE)
        add(f"{model}: strategy ddp / torch DDP on gloo", (model, 2, "lockstep ddp"), gloo, STRATEGY_GOALS[model])
        add(f"{model}: drop-in / torch DDP, both on gloo", (model, 2, "drop-in, gloo"), gloo, DROP_IN_GOALS[model])
        add(f"{model}: strategy ddp, exact / inexact, in the arena", (model, 2, TREE), (model, 2, IN_TURN), EXACT_GOAL)
        many, few = (model, MANY, "lockstep ddp"), (model, 2, "lockstep ddp")
        add(f"{model}: strategy ddp on {MANY} workers / on 2, same batch", many, few, MANY_GOAL)
    alone = ("mlp", 2, "no communication")
    add("mlp: strategy ddp / no communication", ("mlp", 2, "lockstep ddp"), alone, ALONE_GOAL)
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
        low, high = (f"{value * 1e3:.1f}" for value in row.spread)
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
    rows = run([*WORKERS, MANY], list(MODELS), repeats)
    if json:
        found = {"rows": [asdict(row) for row in rows], "goals": [asdict(goal) for goal in goals(rows)]}
        sys.stdout.write(jsonlib.dumps(found, indent=1) + "\n")
        return
    from lockstep.report.render import console

    console().print(table(rows))
    console().print(goal_table(goals(rows)))
