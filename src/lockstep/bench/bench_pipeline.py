"""`lockstep bench pipeline`: a model cut over two workers beside torch's pipelining, or divided beside FSDP."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

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
from lockstep.bench.ranks.processes import run_ranks
from lockstep.errors import BadInput
from lockstep.stages.actions import ONE_FORWARD_ONE_BACKWARD, ZERO_BUBBLE, bubble

WORKERS = 2
"""One per stage, or per part of what is divided."""
LANES = 8
"""Of a step, where nothing else is said."""
MLP, BYTES, NARROW = "deep mlp", "deep bytes", "narrow mlp"
MODELS = (MLP, BYTES)
SWEPT_BATCH = 256
"""Samples of a step of the narrow MLP, on which the sweep over lanes is."""
RANK = "lockstep.bench.ranks.pipeline_rank"
SPREAD = "single starts"
WARM_UP = 2
"""Steps of each way that are not counted, at the beginning; then the first of every turn is not."""
IDEAL_GOAL, STOCK_GOAL, MEMORY_GOAL, SHARDED_GOAL, SHARDED_MEMORY_GOAL = 1.10, 0.9, 0.65, 0.8, 1.0


@dataclass(frozen=True, kw_only=True)
class TrainedWay:
    """One way to train a model; two ranks of this machine, or one."""

    name: str
    """Of its row."""
    strategy: str
    """By name."""
    backend: str = "shm"
    """What carries messages between the ranks."""
    lanes: int = LANES
    """Slices of the global batch."""
    schedule: str = ONE_FORWARD_ONE_BACKWARD
    """The order of lanes."""

    def over(self, lanes: int) -> TrainedWay:
        """Return the same way with so many lanes."""
        return replace(self, name=f"{self.strategy}, {lanes} lanes", lanes=lanes)


PIPELINE = TrainedWay(name="pipeline", strategy="pipeline")
HALVED = TrainedWay(name="pipeline, zero-bubble", strategy="pipeline", schedule=ZERO_BUBBLE)
ON_GLOO = TrainedWay(name="pipeline on gloo", strategy="pipeline", backend="gloo")
LAYERS = TrainedWay(name="layers", strategy="layers")
STOCK = TrainedWay(name="torch-pipeline", strategy="torch-pipeline", backend="gloo")
GPIPE = TrainedWay(name="torch-pipeline, GPipe", strategy="torch-pipeline", backend="gloo", schedule="fill-drain")
CUT = (PIPELINE, HALVED, ON_GLOO, LAYERS, STOCK, GPIPE)
FSDP = TrainedWay(name="torch-fsdp", strategy="torch-fsdp", backend="gloo", lanes=WORKERS)
SHARDED = TrainedWay(name="sharded on gloo", strategy="sharded", backend="gloo", lanes=WORKERS)
DIVIDED = (FSDP, SHARDED)
"""A lane per worker, as FSDP is mostly used."""
SINGLE = TrainedWay(name="single", strategy="single")
ALONE, UPDATE, IDEAL = "stage alone", "update alone", "ideal"
"""What a rank computes of its stage without any other, as plain PyTorch; what follows from it."""


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """One way of training one model."""

    model: str
    """Which model."""
    way: str
    """The way's name, or ALONE."""
    samples: tuple[float, ...]
    """Seconds of a step on the slowest rank, in the order of the repeats."""
    starts: int = 1
    """In how many starts, each with as many samples."""

    @property
    def measured(self) -> Quantity:
        """The median and the quarter points of all samples."""
        return median_and_quartiles(self.samples)

    @property
    def medians(self) -> list[float]:
        """The median of each start."""
        each = len(self.samples) // self.starts
        return [statistics.median(self.samples[at : at + each]) for at in range(0, len(self.samples), each)]


Times = Mapping[tuple[str, str], StepTimes]
"""By model and way."""
Peaks = Mapping[tuple[str, str], tuple[Quantity, Quantity]]
"""By model and way: the peak of the largest rank above what it had after its imports, and with it."""


def run(settings: BenchSettings, tell: Tell) -> Measurements:
    """Time all ways of a model in turn, in several starts; then take the memory of each in processes of its own."""
    starts = dict.fromkeys(settings[MODELS_OPTION], settings[STARTS]) | {NARROW: 1}
    every = [one for model, count in starts.items() for one in _time(model, count, settings, tell)]
    times = {(one.model, one.way): one for one in every}
    times |= {(one.model, one.way): one for one in ideals(times)}
    peaks = _peaks(settings, tell)
    best = min(settings[SWEEP], key=lambda lanes: times[NARROW, PIPELINE.over(lanes).name].measured.value)
    note = f"{NARROW}: of {', '.join(map(str, settings[SWEEP]))} lanes, pipeline is fastest with {best}."
    tables = (ways_table(times), lanes_table(times, settings[SWEEP]), memory_table(peaks))
    return Measurements(tables=tables, figures=(*time_figures(times), *memory_figures(peaks)), notes=(note,))


def check(settings: BenchSettings) -> None:
    """Refuse numbers of lanes that do not divide the global batch."""
    for lanes in settings[SWEEP]:
        if SWEPT_BATCH % lanes:
            raise BadInput(f"{SWEEP.flag} {lanes}: expected a divisor of {SWEPT_BATCH}, the global batch of {NARROW!r}")


def ways_of(model: str, sweep: Sequence[int]) -> list[TrainedWay]:
    """Return what is timed on a model."""
    if model == NARROW:
        return [way.over(lanes) for way in (PIPELINE, LAYERS) for lanes in sweep]
    return [*CUT, *DIVIDED] if model == MLP else [*CUT]


def _time(model: str, starts: int, settings: BenchSettings, tell: Tell) -> list[StepTimes]:
    ways = ways_of(model, settings[SWEEP])
    samples: dict[str, list[float]] = {}
    for start in range(starts):
        tell(f"{model} on {WORKERS} workers: {len(ways)} ways in turn, start {start + 1} of {starts}")
        plan = {"model": model, "ways": list(map(asdict, ways)), "turns": settings[REPEATS], "start": start}
        plan |= {"warm_up": 0 if settings.quick else WARM_UP, "quick": settings.quick}
        for way, times in run_ranks(RANK, WORKERS, plan)["seconds"].items():
            samples.setdefault(way, []).extend(times)
    return [StepTimes(model=model, way=way, samples=tuple(own), starts=starts) for way, own in samples.items()]


def ideals(times: Times) -> list[StepTimes]:
    """Return what a step would take if nothing but the bubble were added to the slowest stage's own work.

    The stage's forward and backward of all lanes, divided by 1 - bubble, and its update.
    """
    share = bubble(ONE_FORWARD_ONE_BACKWARD, WORKERS, LANES)
    return [
        replace(
            alone,
            way=IDEAL,
            samples=tuple(
                lanes / (1.0 - share) + update
                for lanes, update in zip(alone.samples, times[model, UPDATE].samples, strict=True)
            ),
        )
        for (model, way), alone in times.items()
        if way == ALONE
    ]


def _peaks(settings: BenchSettings, tell: Tell) -> dict[tuple[str, str], tuple[Quantity, Quantity]]:
    """Take each way's memory in fresh processes, several times: the allocator keeps now more, now less."""
    peaks = {}
    for way in (one for one in (SINGLE, PIPELINE, *DIVIDED) if one.name in settings[MEMORY_OF]):
        rows = []
        for start in range(settings[STARTS]):
            tell(f"{MLP}: memory of {way.name}, start {start + 1} of {settings[STARTS]}")
            plan = {"model": MLP, "ways": [asdict(way)], "memory": True, "quick": settings.quick}
            ranks = run_ranks(RANK, 1 if way is SINGLE else WORKERS, plan)["memory"]
            rows.append(max(ranks, key=lambda rank: rank[1]))  # base, peak
        peaks[MLP, way.name] = (median([peak - base for base, peak in rows]), median([peak for _, peak in rows]))
    return peaks


def time_figures(times: Times) -> list[Figure]:
    """Return the ratios of times that have a goal, as far as both sides were measured; one per start, the middle."""
    judged: list[Figure] = []

    def add(what: str, model: str, ours: str, theirs: str, goal: float) -> None:
        over, under = times.get((model, ours)), times.get((model, theirs))
        if over and under:
            each = [mine / other for mine, other in zip(over.medians, under.medians, strict=True)]
            sides = (seconds(ours, over.measured), seconds(theirs, under.measured))
            judged.append(figure(what, *sides, at_most(goal), median(each), SPREAD))

    for way in (PIPELINE, HALVED):
        add(f"{MLP}: {way.name} / ideal, {LANES} lanes", MLP, way.name, IDEAL, IDEAL_GOAL)
    for model in MODELS:
        what = f"{model}: {HALVED.name} / torch-pipeline (1F1B), {LANES} lanes"
        add(what, model, HALVED.name, STOCK.name, STOCK_GOAL)
    add(f"{MLP}: sharded / torch-fsdp, both on gloo", MLP, SHARDED.name, FSDP.name, SHARDED_GOAL)
    return judged


def memory_figures(peaks: Peaks) -> list[Figure]:
    """Return the ratios of memory that have a goal: the largest worker's peak above the interpreter and its imports."""
    judged = []
    pairs = ((PIPELINE.name, SINGLE.name, MEMORY_GOAL), (SHARDED.name, FSDP.name, SHARDED_MEMORY_GOAL))
    for ours, theirs, goal in pairs:
        if (MLP, ours) in peaks and (MLP, theirs) in peaks:
            mine, other = (Side(name=way, unit=Unit.BYTES, measured=peaks[MLP, way][0]) for way in (ours, theirs))
            judged.append(figure(f"{MLP}: memory of a worker, {ours} / {theirs}", mine, other, at_most(goal)))
    return judged


def ways_table(times: Times) -> Table:
    """Return what was timed at the same lanes, beside torch-pipeline."""
    names = (IDEAL, *(way.name for way in (*CUT, *DIVIDED)))
    rows: list[dict[str, Cell]] = []
    for (model, way), one in times.items():
        stock = times.get((model, STOCK.name))
        if way in names and stock:
            row: dict[str, Cell] = {"model": model, "way": way, "step": one.measured}
            if way not in (FSDP.name, SHARDED.name):
                row["ratio"] = Quantity(value=one.measured.value / stock.measured.value)
            rows.append(row)
    columns = (
        TableColumn(name="model"),
        TableColumn(name="way"),
        TableColumn(name="step", unit=Unit.SECONDS, spread="quartiles"),
        TableColumn(name="ratio", unit=Unit.RATIO),
    )
    title = f"time of a training step on {WORKERS} workers; ratios to {STOCK.name}"
    return Table(name="ways", title=title, columns=columns, rows=tuple(rows))


def lanes_table(times: Times, sweep: Sequence[int]) -> Table:
    """Return the sweep over lanes: the same global batch, the same cut."""
    rows: list[dict[str, Cell]] = [
        {
            "lanes": lanes,
            "bubble": Quantity(value=bubble(ONE_FORWARD_ONE_BACKWARD, WORKERS, lanes)),
            "pipeline": times[NARROW, PIPELINE.over(lanes).name].measured,
            "layers": Quantity(value=times[NARROW, LAYERS.over(lanes).name].measured.value),
        }
        for lanes in sweep
    ]
    columns = (
        TableColumn(name="lanes"),
        TableColumn(name="bubble", unit=Unit.RATIO),
        TableColumn(name="pipeline", unit=Unit.SECONDS, spread="quartiles"),
        TableColumn(name="layers", unit=Unit.SECONDS, beside="pipeline"),
    )
    title = f"{NARROW}: time of a step on {WORKERS} workers, by lanes of the same global batch"
    return Table(name="lanes", title=title, columns=columns, rows=tuple(rows))


def memory_table(peaks: Peaks) -> Table:
    """Return the largest worker's peak, above its imports and with them."""
    rows: tuple[dict[str, Cell], ...] = tuple(
        {"model": model, "way": way, "above the imports": above, "peak RSS": whole}
        for (model, way), (above, whole) in peaks.items()
    )
    columns = (
        TableColumn(name="model"),
        TableColumn(name="way"),
        TableColumn(name="above the imports", unit=Unit.BYTES),
        TableColumn(name="peak RSS", unit=Unit.BYTES),
    )
    return Table(name="memory", title="most memory of the largest worker", columns=columns, rows=rows)


MODELS_OPTION = BenchOption(name="models", help="Which models.", default=MODELS, quick=(MLP,), choices=MODELS)
SWEEP = BenchOption(name="lanes", help="Numbers of lanes of the sweep.", default=(1, 2, 4, 8, 16, 32, 64), quick=(1, 2))
WEIGHED = tuple(way.name for way in (SINGLE, PIPELINE, FSDP, SHARDED))
MEMORY_OF = BenchOption(
    name="memory-of",
    help="Whose memory is taken.",
    default=WEIGHED,
    quick=(SINGLE.name, PIPELINE.name),
    choices=WEIGHED,
)
REPEATS = repeats(5, what="How often each way is timed in each start, in turn.")
STARTS = BenchOption(
    name="starts", help="How often the ranks are started anew: a ratio is taken in each.", default=3, quick=1
)
BENCHMARK = Benchmark(
    name="pipeline",
    help="Time and memory of a model cut or divided over 2 workers, beside torch.distributed.pipelining and FSDP",
    options=(MODELS_OPTION, SWEEP, MEMORY_OF, REPEATS, STARTS),
    run=run,
    check=check,
)
