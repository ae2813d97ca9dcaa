"""`lockstep bench data`: one big tensor, a list of tensors and a Ragged, in spawned ranks and stock loaders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

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
from lockstep.bench.ranks.data.names import BIG, LIST, METHODS, OURS, SERVER, SIDES, SPAWN
from lockstep.errors import BadInput

NOTHING = "nothing"
LOADER_WORKERS = (0, 2)
LEAST_ITEMS = 100
"""Of each rank."""
SPREAD = "fastest to slowest"
MIDDLE_HALF = "middle half of the pairs"


@dataclass
class HeldData:
    """One side at one number of items."""

    items: int
    """How many."""
    side: str
    """One of SIDES."""
    start: list[float] = field(default_factory=list)
    """Seconds from starting spawned ranks to the last rank's first batch; importing torch is in it."""
    forked: list[float] = field(default_factory=list)
    """The same with ranks from a fork server, which is started too and imports torch once."""
    handed: list[float] = field(default_factory=list)
    """Seconds of that for the data alone: pickling it for all ranks, then in the slowest rank unpickling it and
    reading the first batch. No import is in it, nor that ranks wait for each other's."""
    epoch: dict[int, list[float]] = field(default_factory=dict)
    """Seconds per epoch in a stock loader, by its workers."""
    descriptors: int = 0
    """Open files of a rank."""
    private: int = 0
    """Bytes of a rank alone."""
    shared: int = 0
    """Bytes it has in common with others."""
    copies: float = 0.0
    """What all ranks together hold beyond what they hold without the data, in copies of it."""
    by_hand: float | str | None = None
    """Seconds of a small training in ranks that were started by hand, or why it has none."""
    lightning: float | str | None = None
    """The same in Lightning's spawned ranks."""
    why_not: str = ""
    """What stopped it."""


def check(settings: BenchSettings) -> None:
    """Refuse fewer items than the ranks can share, and ranks of which it is not known what they hold."""
    least = LEAST_ITEMS * settings[RANKS]
    if min(settings[ITEMS]) < least:
        raise BadInput(f"{ITEMS.flag} {min(settings[ITEMS])}: expected at least {least} for {settings[RANKS]} ranks")
    if SPAWN not in settings[STARTED_BY]:
        raise BadInput(
            f"{STARTED_BY.flag} {STARTED_BY.write(settings[STARTED_BY])}: expected {SPAWN} among them: what a rank "
            "holds is taken from spawned ranks"
        )


def run(settings: BenchSettings, tell: Tell) -> Measurements:
    """Measure all sides in turn; more items first make the list fail, which is a row that says so."""
    import torch

    from lockstep.bench.ranks.data.building import building
    from lockstep.bench.ranks.data.sampling import first_batches

    holdings: list[HeldData] = []
    figures: list[Figure] = []
    for items in settings[ITEMS]:
        here = {side: HeldData(items, side) for side in SIDES}
        values = torch.randn(items, settings[ELEMENTS])
        tell(f"{items} items: building")
        built, copied = building(values, settings[REPEATS])
        what = f"{items} items: building / a plain copy of the bytes"
        figures.append(_paired(what, ("Ragged from a list", built), ("clone", copied), 3.0))
        _start_ranks(here, settings, tell)
        _read_epochs(here, values, settings, tell)
        if items == settings[ITEMS][0]:
            _train(here, settings, tell)
        holdings += here.values()
        figures += _figures(here, settings)
    tell("first batch of a huge epoch")
    samples, ours, theirs = first_batches(settings[SAMPLES])
    what = f"first batch of {samples} samples: ours / DistributedSampler"
    sampling = (seconds("lockstep", Quantity(value=ours)), seconds("DistributedSampler", Quantity(value=theirs)))
    figures += [_descriptors(holdings), figure(what, *sampling, at_most(0.01))]
    return Measurements(tables=(table(holdings),), figures=tuple(figures))


def _start_ranks(here: dict[str, HeldData], settings: BenchSettings, tell: Tell) -> None:
    """Start ranks of every side, by every method; with the fewest items in every repeat: there one varies most."""
    from lockstep.bench.ranks.data.programs import start_ranks

    items = here[OURS].items
    for repeat in range(settings[REPEATS] if items == settings[ITEMS][0] else 1):
        for how in settings[STARTED_BY]:
            for side, holding in here.items():
                if holding.why_not or (repeat and (side == BIG or here[LIST].why_not)):
                    continue
                tell(f"{items} items: {side} in {settings[RANKS]} ranks by {how}, repeat {repeat + 1}")
                plan = {"side": side, "items": items, "elements": settings[ELEMENTS], "ranks": settings[RANKS]}
                started = start_ranks({**plan, "how": how})
                if isinstance(started, str):
                    holding.why_not = started
                elif how == SERVER:
                    holding.forked.append(started["start"])
                else:
                    _note_start(holding, started)


def _note_start(holding: HeldData, started: dict[str, float]) -> None:
    holding.start.append(started["start"])
    holding.handed.append(started["handed"])
    holding.copies = started["copies"]
    holding.descriptors, holding.private, holding.shared = (
        int(started[name]) for name in ("descriptors", "private", "shared")
    )


def _read_epochs(here: dict[str, HeldData], values: object, settings: BenchSettings, tell: Tell) -> None:
    from lockstep.bench.ranks.data.programs import read_epochs

    items = here[OURS].items
    tell(f"{items} items: epochs")
    rounds = (settings[ROUNDS] if items == settings[ITEMS][0] else -(-settings[ROUNDS] // 3)) * settings[REPEATS]
    sides = [side for side, holding in here.items() if not holding.why_not]
    for side, epoch in read_epochs(sides, values, LOADER_WORKERS, rounds).items():
        here[side].epoch = epoch


def _train(here: dict[str, HeldData], settings: BenchSettings, tell: Tell) -> None:
    from lockstep.bench.ranks.data.programs import by_hand, in_lightning

    for side in settings[TRAINED]:
        if side != NOTHING:
            tell(f"{here[side].items} items: {side} in a small training, by hand and in Lightning")
            here[side].by_hand = by_hand(side, here[side].items, settings[ELEMENTS])
            here[side].lightning = in_lightning(side, here[side].items, settings[ELEMENTS])


def _figures(here: dict[str, HeldData], settings: BenchSettings) -> list[Figure]:
    ours, theirs, items = here[OURS], here[LIST], here[OURS].items
    judged = [
        _paired(
            f"{items} items: epoch, {workers} loader workers: Ragged / one big tensor",
            (OURS, ours.epoch[workers]),
            (BIG, big),
            1.05,
        )
        for workers, big in here[BIG].epoch.items()
    ]
    if not theirs.why_not:
        kinds = {
            "spawned ranks": (ours.start, theirs.start),
            "the data's part of it": (ours.handed, theirs.handed),
            "ranks from a fork server": (ours.forked, theirs.forked),
        }
        for kind, (mine, other) in kinds.items():
            if not mine:
                continue
            judged.append(
                _paired(f"{items} items: start, {kind}: Ragged / list of tensors", (OURS, mine), (LIST, other), 0.5)
            )
    size = items * settings[ELEMENTS] * 4
    held, data = (
        Side(name=name, unit=Unit.BYTES, measured=Quantity(value=value))
        for name, value in (("held by all ranks", ours.copies * size), ("the data", size))
    )
    what = f"{items} items: memory of all ranks, in copies of the data"
    return [*judged, figure(what, held, data, at_most(1.1), Quantity(value=ours.copies))]


def _paired(what: str, ours: tuple[str, Sequence[float]], theirs: tuple[str, Sequence[float]], most: float) -> Figure:
    """Compare neighbours in time, because a busy minute hurts both sides of a pair, and take the median."""
    ratio = median_and_quartiles([one / other for one, other in zip(ours[1], theirs[1], strict=True)])
    mine, other = (seconds(name, median(samples)) for name, samples in (ours, theirs))
    return figure(what, mine, other, at_most(most), ratio, MIDDLE_HALF)


def _descriptors(holdings: Sequence[HeldData]) -> Figure:
    counts = [holding.descriptors for holding in holdings if holding.side == OURS]
    most, fewest = (
        Side(name=name, unit=Unit.COUNT, measured=Quantity(value=value))
        for name, value in (("most", max(counts)), ("fewest", min(counts)))
    )
    return figure("descriptors of a rank: most items / fewest items", most, fewest, at_most(1.0))


COLUMNS = (
    TableColumn(name="items"),
    TableColumn(name="held as"),
    TableColumn(name="start, spawn", unit=Unit.SECONDS, spread=SPREAD),
    TableColumn(name="the data's part", unit=Unit.SECONDS, spread=SPREAD),
    TableColumn(name="start, server", unit=Unit.SECONDS, spread=SPREAD),
    *(TableColumn(name=f"epoch, {workers} workers", unit=Unit.SECONDS, spread=SPREAD) for workers in LOADER_WORKERS),
    TableColumn(name="files", unit=Unit.COUNT),
    TableColumn(name="private", unit=Unit.BYTES),
    TableColumn(name="shared", unit=Unit.BYTES),
    TableColumn(name="copies", unit=Unit.RATIO),
    TableColumn(name="trained by hand", unit=Unit.SECONDS),
    TableColumn(name="in Lightning", unit=Unit.SECONDS),
)


def table(holdings: Sequence[HeldData]) -> Table:
    """Return what was measured; a side that could not be has its reason."""
    rows = tuple(map(_row, holdings))
    return Table(name="sides", title="the same items, three ways", columns=COLUMNS, rows=rows)


def _row(holding: HeldData) -> dict[str, Cell]:
    row: dict[str, Cell] = {"items": holding.items, "held as": holding.side}
    if holding.why_not:
        return {**row, "start, spawn": holding.why_not}
    starts = {"start, spawn": holding.start, "the data's part": holding.handed, "start, server": holding.forked}
    trained = {"trained by hand": holding.by_hand, "in Lightning": holding.lightning}
    return {
        **row,
        **{name: median(samples) for name, samples in starts.items() if samples},
        **{f"epoch, {workers} workers": median(samples) for workers, samples in holding.epoch.items()},
        "files": Quantity(value=holding.descriptors),
        "private": Quantity(value=holding.private),
        "shared": Quantity(value=holding.shared),
        "copies": Quantity(value=holding.copies),
        **{name: Quantity(value=took) if isinstance(took, float) else took for name, took in trained.items()},
    }


ITEMS = BenchOption(name="items", help="How many items.", default=(2_000, 10_000, 200_000), quick=(200,))
ELEMENTS = BenchOption(name="elements", help="Numbers per item.", default=2048, quick=64)
STARTED_BY = BenchOption(
    name="started-by",
    help="How these are started; what a rank holds is taken from the spawned ones.",
    default=METHODS,
    quick=(SPAWN,),
    choices=METHODS,
)
RANKS = BenchOption(name="ranks", help="Processes that hold the data at once.", default=4, quick=1)
SAMPLES = BenchOption(
    name="samples",
    help="Of the epoch whose first batch is timed; fewer where memory is too small for the stock sampler.",
    default=100_000_000,
    quick=100_000,
    minimum=1000,
)
TRAINED = BenchOption(
    name="trained",
    help="Sides whose small training is timed too, by hand and in Lightning if it is installed.",
    default=SIDES,
    quick=(NOTHING,),
    choices=(*SIDES, NOTHING),
)
ROUNDS = BenchOption(
    name="rounds",
    help="Epochs of each side in a repeat, with the fewest items; short ones more often, of more items a third.",
    default=12,
    quick=1,
)
REPEATS = repeats(3, what="How often ranks with the fewest items are started; epochs and builds in proportion.")
BENCHMARK = Benchmark(
    name="data",
    help="Time and memory of the same items in memory as one big tensor, as a list of tensors, and as a Ragged",
    options=(ITEMS, ELEMENTS, RANKS, STARTED_BY, SAMPLES, TRAINED, ROUNDS, REPEATS),
    run=run,
    check=check,
)
