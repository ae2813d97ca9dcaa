"""`lockstep bench ddp`: a training step without communication, with torch DDP, and with ours, side by side."""

from __future__ import annotations

import json as jsonlib
import statistics
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from lockstep.bench.ranks import run_ranks

if TYPE_CHECKING:
    from rich.table import Table

WAYS = (
    "no communication",
    "torch DDP, gloo",
    "torch DDP, shm",
    "drop-in, gloo",
    "drop-in, shm",
    "lockstep ddp",
)
MODELS = ("mlp", "cifar100", "500 small tensors")
WORKERS = (2, 4)


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


def run(workers: list[int], models: list[str], repeats: int) -> list[Row]:
    """Time every way in turn, `repeats` times over; then take each one's memory in processes of its own."""
    rows = []
    for count in workers:
        for model in models:
            plan = {"model": model, "repeats": repeats}
            samples = run_ranks("lockstep.bench.ddp_rank", count, {**plan, "ways": WAYS})
            for way in WAYS:
                alone = {**plan, "ways": [way], "repeats": 1, "memory": True}
                memory = run_ranks("lockstep.bench.ddp_rank", count, alone)["memory"] if count == 2 else None
                times = samples["seconds"][way]
                low, _, high = statistics.quantiles(times, n=4)
                rows.append(
                    Row(
                        model=model,
                        workers=count,
                        way=way,
                        seconds=statistics.median(times),
                        spread=(low, high),
                        memory=memory,
                    )
                )
    return rows


def table(rows: list[Row]) -> Table:
    """Return the rows with their ratios to torch DDP on gloo."""
    from rich.table import Table

    made = Table(title="time of a training step; ratios to torch DDP on gloo", title_justify="left")
    for heading in ("model", "W", "way", "step", "quarter points", "ratio", "memory of all ranks", "ratio"):
        made.add_column(heading, justify="left" if heading in ("model", "way") else "right")
    for row in rows:
        base = next(r for r in rows if (r.model, r.workers, r.way) == (row.model, row.workers, WAYS[1]))
        memory = "" if row.memory is None else f"{row.memory / 2**20:.0f} MiB"
        ratio = "" if not row.memory or not base.memory else f"{row.memory / base.memory:.2f}"
        low, high = (f"{value * 1e3:.1f}" for value in row.spread)
        made.add_row(
            row.model,
            str(row.workers),
            row.way,
            f"{row.seconds * 1e3:.1f} ms",
            f"{low} to {high}",
            f"{row.seconds / base.seconds:.2f}",
            memory,
            ratio,
        )
    return made


def main(*, json: bool, repeats: int) -> None:
    """Run all of it and print the table, or JSON."""
    rows = run(list(WORKERS), list(MODELS), repeats)
    if json:
        sys.stdout.write(jsonlib.dumps([asdict(row) for row in rows], indent=1) + "\n")
        return
    from lockstep.report.render import console

    console().print(table(rows))
