"""`lockstep bench hosts`: a training step on two hosts with a wire of known speed, with torch DDP and with ours."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.bench.contract import (
    Benchmark,
    BenchOption,
    BenchSettings,
    Cell,
    Figure,
    Measurements,
    Quantity,
    Side,
    Table,
    TableColumn,
    Tell,
    Unit,
    at_most,
    figure,
    median,
    median_and_quartiles,
    repeats,
    seconds,
)
from lockstep.bench.ranks.namespaces import WIRE, hosts, unavailable
from lockstep.bench.ranks.processes import run_ranks

ALONE, OURS, MESSAGES = "no communication", "lockstep ddp", "messages alone"
BUCKETS = (1, 5, 25)
"""Megabytes of torch DDP's buckets; the fastest of them is the opponent."""
NODES = 2
MODELS = ("mlp", "cifar100")
SLOW, SLOW_GOAL, GOAL, BYTES_GOAL, WHOLE_GOAL = 1, 0.9, 1.0, 1.05, 1.15
HARD = "mlp"
"""The model whose step is mostly communication."""


def stock(megabytes: int) -> str:
    """Return how torch DDP with buckets of this size is called."""
    return f"torch DDP, {megabytes} MB"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One model on so many workers over one wire."""

    model: str
    workers: int
    gigabits: int
    starts: tuple[Mapping[str, Any], ...]
    """What rank 0 returned, start by start."""

    @property
    def name(self) -> str:
        """As figures call it."""
        return f"{self.model}, {self.workers // NODES} + {self.workers // NODES} ranks, {self.gigabits} Gbit/s"

    @property
    def base(self) -> str:
        """The fastest torch DDP."""
        return min(map(stock, BUCKETS), key=lambda way: self.seconds(way).value)

    @property
    def wire(self) -> float:
        """Seconds that the least number of bytes would need on the wire without headers, pauses and copies."""
        return self.least * 8 / (self.gigabits * 1e9)

    @property
    def least(self) -> float:
        """Bytes that a host must send in a step, and receive: 2 (H - 1) / H of the gradients, which for two is all."""
        return 2 * (NODES - 1) / NODES * float(self.starts[0]["gradients"])

    def seconds(self, way: str) -> Quantity:
        """Return a step's time on the slowest rank."""
        return median_and_quartiles([one for start in self.starts for one in start["seconds"][way]])

    def medians(self, way: str) -> list[float]:
        """Return the median of each start."""
        return [statistics.median(start["seconds"][way]) for start in self.starts]


def run(settings: BenchSettings, tell: Tell) -> Measurements:
    """Measure each case in starts of its own."""
    cases = []
    for gigabits in settings[GIGABITS]:
        for model in settings[MODELS_OPTION]:
            for workers in settings[WORKERS]:
                starts = tuple(_start(settings, tell, (model, workers, gigabits), n) for n in range(settings[STARTS]))
                cases.append(Case(model=model, workers=workers, gigabits=gigabits, starts=starts))
    figures = [figure for case in cases for figure in judged(case)]
    return Measurements(tables=(steps_table(cases), wire_table(cases)), figures=tuple(figures), notes=(NOTE,))


NOTE = (
    "Two network namespaces on one machine, whose cores all ranks and the kernel's copies share; CPU only. Torch DDP "
    f"has buckets of {', '.join(map(str, BUCKETS))} MB, in the same processes, and ours is compared with the fastest. "
    f"{MESSAGES.capitalize()}: the least number of bytes both ways at once over gloo, in the same processes."
)


def _start(settings: BenchSettings, tell: Tell, case: tuple[str, int, int], number: int) -> Any:
    model, workers, gigabits = case
    tell(f"{model} on {NODES} hosts with {workers // NODES} ranks each at {gigabits} Gbit/s, start {number + 1}")
    plan = {"model": model, "nodes": NODES, "turns": -(-settings[REPEATS] // settings[STARTS])}
    with hosts(NODES, gigabits=gigabits) as made:
        return run_ranks(
            "lockstep.bench.ranks.hosts_rank",
            workers,
            plan,
            environment={"GLOO_SOCKET_IFNAME": WIRE},
            where=lambda rank: made[rank // (workers // NODES)].command(),
        )


def judged(case: Case) -> list[Figure]:
    """Return the ratios that have a goal."""
    goal = SLOW_GOAL if (case.model, case.gigabits) == (HARD, SLOW) else GOAL
    ours, theirs = (seconds(way, case.seconds(way)) for way in (OURS, case.base))
    each = [mine / other for mine, other in zip(case.medians(OURS), case.medians(case.base), strict=True)]
    figures = [figure(f"{case.name}: ddp / torch DDP", ours, theirs, at_most(goal), median(each), "single starts")]
    sent = median([start["bytes"][OURS] for start in case.starts])
    bytes_sent = Side(name="sent by a host", unit=Unit.BYTES, measured=sent)
    least = Side(name="least", unit=Unit.BYTES, measured=Quantity(value=case.least))
    figures.append(figure(f"{case.name}: bytes of a step / least", bytes_sent, least, at_most(BYTES_GOAL)))
    if (case.model, case.gigabits) == (HARD, SLOW):
        longer = max((ALONE, MESSAGES), key=lambda way: case.seconds(way).value)
        figures.append(
            figure(
                f"{case.name}: step / the longer of compute and messages alone",
                ours,
                seconds(longer, case.seconds(longer)),
                at_most(WHOLE_GOAL),
            )
        )
    return figures


def steps_table(cases: Sequence[Case]) -> Table:
    """Return a step's time, a column for each way."""
    ways = (ALONE, *map(stock, BUCKETS), OURS)
    rows = [{**_head(case), **{way: case.seconds(way) for way in ways}} for case in cases]
    columns = tuple(TableColumn(name=way, unit=Unit.SECONDS, spread="quartiles") for way in ways)
    return Table(
        name="steps", title="time of a training step on two hosts", columns=(*HEAD, *columns), rows=tuple(rows)
    )


def wire_table(cases: Sequence[Case]) -> Table:
    """Return what goes over the wire, and what of it is hidden behind backward."""
    rows: list[dict[str, Cell]] = []
    for case in cases:
        sent, stock_sent = (
            Quantity(value=statistics.median(start["bytes"][way] for start in case.starts))
            for way in (OURS, stock(BUCKETS[-1]))
        )
        hidden = Quantity(value=statistics.median(start["hidden"] for start in case.starts))
        row = {"least": Quantity(value=case.least), OURS: sent, "torch DDP": stock_sent}
        times = {"wire time": Quantity(value=case.wire), MESSAGES: case.seconds(MESSAGES)}
        rows.append({**_head(case), **row, **times, "exchange hidden": hidden})
    columns = (
        *(TableColumn(name=name, unit=Unit.BYTES) for name in ("least", OURS, "torch DDP")),
        TableColumn(name="wire time", unit=Unit.SECONDS),
        TableColumn(name=MESSAGES, unit=Unit.SECONDS, spread="quartiles"),
        TableColumn(name="exchange hidden", unit=Unit.SHARE),
    )
    title = "bytes that a host sends in a step, and the share of our exchange behind backward"
    return Table(name="wire", title=title, columns=(*HEAD, *columns), rows=tuple(rows))


HEAD = (TableColumn(name="model"), TableColumn(name="workers"), TableColumn(name="Gbit/s"))


def _head(case: Case) -> dict[str, Cell]:
    return {"model": case.model, "workers": case.workers, "Gbit/s": case.gigabits}


MODELS_OPTION = BenchOption(name="models", help="Which models.", default=MODELS, quick=("mlp",), choices=MODELS)
WORKERS = BenchOption(
    name="workers", help="How many workers, half of them on each host.", default=(2, 4), quick=(2,), minimum=2
)
GIGABITS = BenchOption(name="gigabits", help="Speeds of the wire, in Gbit/s each way.", default=(1, 10), quick=(10,))
STARTS = BenchOption(name="starts", help="How often the ranks are started anew.", default=2, quick=1)
REPEATS = repeats(8)
BENCHMARK = Benchmark(
    name="hosts",
    help="Time of a training step on two hosts, and bytes on the wire between them, with torch DDP and with ours",
    unavailable=unavailable,
    options=(MODELS_OPTION, WORKERS, GIGABITS, STARTS, REPEATS),
    run=run,
)
