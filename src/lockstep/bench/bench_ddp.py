"""`lockstep bench ddp`: a training step without communication, with torch DDP, and with ours, side by side."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

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
)
from lockstep.bench.ranks.processes import run_ranks
from lockstep.errors import BadInput

ALONE, BASE, OURS = "no communication", "torch DDP on gloo", "lockstep ddp"
STOCK_SHM, DROP_IN = "torch DDP on shm", "drop-in on gloo"
WAYS = (ALONE, BASE, STOCK_SHM, DROP_IN, "drop-in on shm", OURS)
LANES = 8
TREE, IN_TURN = f"{OURS}, {LANES} lanes", f"{OURS}, {LANES} lanes, inexact"
MORE = ("drop-in exact on gloo",)
"""Measured where time matters least: with two workers."""
WEIGHED = (ALONE, BASE, STOCK_SHM, DROP_IN, OURS)
"""Whose memory is taken."""
MODELS = ("mlp", "cifar100", "500 small tensors")
PAIRS = {"drop-in": (BASE, DROP_IN), "exact": (IN_TURN, TREE)}
"""Close together: each pair has processes of its own, in which no third way takes room in the caches."""
IN_ROUNDS = f"{TREE}, in rounds"
NOTHING = "nothing"
FEW = 2
"""Workers of the figures."""
PAIR_STARTS, PAIR_TURNS = 12, 5
"""Pairs are started more often, and take so many times more turns in all."""
DROP_IN_GOALS = {"mlp": 1.0, "cifar100": 1.0, "500 small tensors": 1.05}
STRATEGY_GOALS = {"mlp": 0.55, "cifar100": 0.97, "500 small tensors": 0.9}
EXACT_GOAL, MANY_GOAL, ALONE_GOAL, MEMORY_GOAL = 1.03, 1.4, 0.9, 0.6
RANK = "lockstep.bench.ranks.ddp_rank"


@dataclass(frozen=True, kw_only=True)
class Timing:
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
    memory: Quantity | None = None
    """Bytes of all ranks together above what they had after their imports (PSS), after a few steps; the median."""

    @property
    def seconds(self) -> Quantity:
        """The median and the quarter points of all samples."""
        return median_and_quartiles(self.samples)

    @property
    def medians(self) -> list[float]:
        """The median of each start."""
        each = len(self.samples) // self.starts
        return [statistics.median(self.samples[at : at + each]) for at in range(0, len(self.samples), each)]

    @property
    def side(self) -> Side:
        """As one side of a ratio."""
        return Side(name=f"{self.way} ({self.workers} workers)", unit=Unit.SECONDS, measured=self.seconds)


@dataclass(frozen=True)
class Series:
    """Ways that take turns in the same ranks, which are started anew several times."""

    model: str
    workers: int
    ways: list[str]
    turns: int
    """In each start."""
    starts: int

    def time(self, tell: Tell) -> list[Timing]:
        """Return the timing of each way."""
        samples: dict[str, list[float]] = {way: [] for way in self.ways}
        who = " / ".join(self.ways) if len(self.ways) <= 2 else f"{len(self.ways)} ways in turn"
        for start in range(self.starts):
            tell(f"{self.model} on {self.workers} workers: {who}, start {start + 1} of {self.starts}")
            plan = {"model": self.model, "turns": self.turns, "ways": self.ways, "start": start}
            for way, seconds in run_ranks(RANK, self.workers, plan)["seconds"].items():
                samples[way] += seconds
        return [
            Timing(model=self.model, workers=self.workers, way=way, samples=tuple(seconds), starts=self.starts)
            for way, seconds in samples.items()
        ]


def in_pair(way: str) -> str:
    """Return how the row of a way is called that was measured in a pair."""
    return f"{way}, in a pair"


def run(settings: BenchSettings, tell: Tell) -> Measurements:
    """Time all ways in turn and take their memory; then pairs that are close, and few and many workers in turn."""
    timings = [*time_ways(settings, tell), *time_pairs(settings, tell), *time_rounds(settings, tell)]
    tables = (steps_table(timings), ways_table(timings))
    return Measurements(tables=tables, figures=tuple(figures(timings, settings[MANY])))


def check(settings: BenchSettings) -> None:
    """Refuse numbers of workers that cannot have equally many of the lanes."""
    few, many = min(settings[WORKERS]), settings[MANY]
    for option, workers in ((WORKERS, few), (MANY, many)):
        if LANES % workers:
            raise BadInput(f"{option.flag} {workers}: expected a divisor of {LANES}, the number of lanes")
    if many <= few:
        raise BadInput(f"{MANY.flag} {many}: expected more than the {few} workers of {WORKERS.flag}")


def time_ways(settings: BenchSettings, tell: Tell) -> list[Timing]:
    """Time all ways together; where ratios have goals, in several starts, and with the memory."""
    timings = []
    for workers in settings[WORKERS]:
        few = workers == min(settings[WORKERS])
        starts = settings[STARTS] if few else 1
        for model in settings[MODELS_OPTION]:
            ways = [*WAYS, *MORE] if few else list(WAYS)
            series = Series(model, workers, ways, -(-settings[REPEATS] // starts), starts)
            for timing in series.time(tell):
                weighed = few and timing.way in settings[MEMORY_OF]
                if weighed:
                    tell(f"{model} on {workers} workers: memory of {timing.way}")
                # The allocator keeps now more, now less of what is freed: half as many starts are enough.
                memory = _memory(model, workers, timing.way, -(-starts // 2)) if weighed else None
                timings.append(replace(timing, memory=memory))
    return timings


def time_pairs(settings: BenchSettings, tell: Tell) -> list[Timing]:
    """Time PAIRS on the fewest workers."""
    few, turns = min(settings[WORKERS]), -(-PAIR_TURNS * settings[REPEATS] // PAIR_STARTS)
    timings = []
    for model in settings[MODELS_OPTION]:
        for pair in (PAIRS[name] for name in settings[PAIRS_OPTION] if name != NOTHING):
            series = Series(model, few, list(pair), turns, settings[PAIR_STARTS_OPTION])
            timings += [replace(timing, way=in_pair(timing.way)) for timing in series.time(tell)]
    return timings


def time_rounds(settings: BenchSettings, tell: Tell) -> list[Timing]:
    """Time the fewest and many workers in turn, on the same lanes; each turn starts its ranks anew."""
    few, many, rounds = min(settings[WORKERS]), settings[MANY], settings[STARTS]
    timings = []
    for model in settings[MODELS_OPTION]:
        samples: dict[int, list[float]] = {few: [], many: []}
        for _ in range(rounds):
            for workers, own in samples.items():
                (timing,) = Series(model, workers, [TREE], -(-settings[REPEATS] // rounds), 1).time(tell)
                own += timing.samples
        timings += [
            Timing(model=model, workers=workers, way=IN_ROUNDS, samples=tuple(own), starts=rounds)
            for workers, own in samples.items()
        ]
    return timings


def _memory(model: str, workers: int, way: str, starts: int) -> Quantity:
    plan = {"model": model, "ways": [way], "memory": True}
    return median([run_ranks(RANK, workers, plan)["memory"] for _ in range(starts)])


def figures(timings: Sequence[Timing], many: int) -> list[Figure]:
    """Return the ratios that have a goal, as far as both sides were measured."""
    known = {(timing.model, timing.workers, timing.way): timing for timing in timings}
    judged: list[Figure] = []

    def add(what: str, over: tuple[str, int, str], under: tuple[str, int, str], goal: float) -> None:
        """Take the ratio in each start; the middle of these counts."""
        if over in known and under in known:
            ours, theirs = known[over], known[under]
            each = [mine / other for mine, other in zip(ours.medians, theirs.medians, strict=True)]
            judged.append(figure(what, ours.side, theirs.side, at_most(goal), median(each), "single starts"))

    for model in MODELS:
        base, ours = ((model, FEW, way) for way in (BASE, OURS))
        add(f"{model}: strategy ddp / torch DDP on gloo", ours, base, STRATEGY_GOALS[model])
        base, drop_in = ((model, FEW, in_pair(way)) for way in (BASE, DROP_IN))
        add(f"{model}: drop-in / torch DDP, both on gloo", drop_in, base, DROP_IN_GOALS[model])
        tree, in_turn = ((model, FEW, in_pair(way)) for way in (TREE, IN_TURN))
        add(f"{model}: strategy ddp, exact / inexact, 4 lanes a worker, in the arena", tree, in_turn, EXACT_GOAL)
        more, few = ((model, workers, IN_ROUNDS) for workers in (many, FEW))
        add(f"{model}: strategy ddp on {many} workers / on {FEW}, same batch and lanes", more, few, MANY_GOAL)
    add("mlp: strategy ddp / no communication", ("mlp", FEW, OURS), ("mlp", FEW, ALONE), ALONE_GOAL)
    return judged + _memory_figure(known)


def _memory_figure(known: Mapping[tuple[str, int, str], Timing]) -> list[Figure]:
    ours, base = (known.get(("mlp", FEW, way)) for way in (OURS, BASE))
    if not (ours and ours.memory and base and base.memory):
        return []
    sides = (
        Side(name=OURS, unit=Unit.BYTES, measured=ours.memory),
        Side(name=BASE, unit=Unit.BYTES, measured=base.memory),
    )
    return [figure("mlp: memory of strategy ddp / torch DDP on gloo", *sides, at_most(MEMORY_GOAL))]


def steps_table(timings: Sequence[Timing]) -> Table:
    """Return the medians of a step, a column for each way."""
    rows: dict[tuple[str, int], dict[str, Cell]] = {}
    for timing in timings:
        if timing.way in WAYS:
            row = rows.setdefault((timing.model, timing.workers), {"model": timing.model, "workers": timing.workers})
            row[timing.way] = Quantity(value=timing.seconds.value)
    columns = [TableColumn(name=way, unit=Unit.SECONDS, beside="" if way == BASE else BASE) for way in WAYS]
    return Table(
        name="steps",
        title="median time of a training step",
        columns=(TableColumn(name="model"), TableColumn(name="workers"), *columns),
        rows=tuple(rows.values()),
    )


def ways_table(timings: Sequence[Timing]) -> Table:
    """Return everything that was timed, with the ratios to torch DDP on gloo."""
    bases = {(timing.model, timing.workers): timing for timing in timings if timing.way == BASE}
    rows = []
    for timing in timings:
        base = bases.get((timing.model, timing.workers))
        row: dict[str, Cell] = {
            "model": timing.model,
            "workers": timing.workers,
            "way": timing.way,
            "step": timing.seconds,
            "memory of all ranks": timing.memory and Quantity(value=timing.memory.value, samples=timing.memory.samples),
        }
        if base:
            row["step, ratio"] = Quantity(value=timing.seconds.value / base.seconds.value)
        if base and base.memory and timing.memory:
            row["memory, ratio"] = Quantity(value=timing.memory.value / base.memory.value)
        rows.append(row)
    return Table(
        name="ways",
        title=f"time of a training step; ratios to {BASE}",
        columns=(
            TableColumn(name="model"),
            TableColumn(name="workers"),
            TableColumn(name="way"),
            TableColumn(name="step", unit=Unit.SECONDS, spread="quartiles"),
            TableColumn(name="step, ratio", unit=Unit.RATIO),
            TableColumn(name="memory of all ranks", unit=Unit.BYTES),
            TableColumn(name="memory, ratio", unit=Unit.RATIO),
        ),
        rows=tuple(rows),
    )


MODELS_OPTION = BenchOption(name="models", help="Which models.", default=MODELS, quick=("mlp",), choices=MODELS)
WORKERS = BenchOption(
    name="workers", help="How many workers, all on this machine.", default=(2, 4), quick=(2,), minimum=2
)
MANY = BenchOption(
    name="many",
    help=f"Workers on the same global batch in the same {LANES} lanes, to see what the mere number costs.",
    default=LANES,
    quick=4,
    minimum=2,
)
MEMORY_OF = BenchOption(
    name="memory-of", help="Whose memory is taken.", default=WEIGHED, quick=(NOTHING,), choices=(*WEIGHED, NOTHING)
)
PAIRS_OPTION = BenchOption(
    name="pairs",
    help="Which ways that are close together are timed in pairs too: the drop-in beside torch's, exact beside inexact.",
    default=tuple(PAIRS),
    quick=(NOTHING,),
    choices=(*PAIRS, NOTHING),
)
REPEATS = repeats(20)
STARTS = BenchOption(
    name="starts",
    help="How often the ranks are started anew for ways whose ratio has a goal.",
    default=6,
    quick=1,
)
"""Where weights and the optimizer's state happen to lie in memory makes one way up to a tenth slower than another while
its process lives, and another way the next time; it often is the way that was made first. So every second start makes
them the other way round, a ratio is taken in each start, and the middle of these counts."""
PAIR_STARTS_OPTION = BenchOption(name="pair-starts", help="The same for these pairs.", default=PAIR_STARTS, quick=1)
BENCHMARK = Benchmark(
    name="ddp",
    help="Time and memory of a training step without communication, with torch DDP, and with ours",
    options=(MODELS_OPTION, WORKERS, MANY, MEMORY_OF, PAIRS_OPTION, REPEATS, STARTS, PAIR_STARTS_OPTION),
    run=run,
    check=check,
)
