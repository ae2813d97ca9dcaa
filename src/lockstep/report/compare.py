"""A comparison: rows side by side, judged; everything a report needs, from run folders alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from lockstep.registry import BASELINE
from lockstep.report import parity, why
from lockstep.report.advice import recommend
from lockstep.report.collect import FinishedRun
from lockstep.report.notes import notes
from lockstep.report.rows import Row, summarise
from lockstep.report.units import plural
from lockstep.report.wording import Setting, trained, written


@dataclass(frozen=True, kw_only=True)
class Point:
    """One point of a scaling curve."""

    strategy: str
    """Of which curve."""
    workers: int
    """Where on it."""
    lanes: int | None = None
    """Of which curve, where several numbers of lanes were measured."""
    samples_per_second: float
    """Over all workers."""
    speed_up: float | None = None
    """Over `single`."""
    efficiency: float | None = None
    """Speed-up per worker; 1 is ideal."""

    @property
    def curve(self) -> str:
        """The name of its curve."""
        return self.strategy if self.lanes is None else f"{self.strategy}, {plural(self.lanes, 'lane')}"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The ways side by side."""

    title: str
    """Of the table."""
    rows: tuple[Row, ...]
    """One for each way, in the order asked for."""
    recommendation: tuple[str, ...] = ()
    """What to use, and by how much it is better: a sentence each."""
    settings: Mapping[str, Setting] = field(default_factory=dict)
    """What all rows share: recipe, batch, lanes, threads, seed, steps, repeats, launcher and so on."""
    versions: Mapping[str, str | None] = field(default_factory=dict)
    """Of what the bits and the times depend on."""
    hosts: tuple[str, ...] = ()
    """Where the ranks ran."""
    curve: tuple[Point, ...] = ()
    """Scaling, if more than one number of workers was measured."""
    runs: Mapping[str, Sequence[FinishedRun]] = field(default_factory=dict)
    """The finished runs by row name."""

    def as_json(self) -> dict[str, object]:
        """Return what comparison.json holds, with the runs as their folders."""
        return {
            "title": self.title,
            "recommendation": list(self.recommendation),
            "rows": [row.as_json() for row in self.rows],
            "curve": list(self.curve),
            "settings": dict(self.settings),
            "versions": dict(self.versions),
            "hosts": list(self.hosts),
            "runs": {name: [written(run.folder) for run in runs] for name, runs in self.runs.items()},
        }


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One way and what became of it: the runs that ended well, and why there are no more."""

    name: str
    """Of the row."""
    strategy: str
    """As typed."""
    workers: int
    """How many were asked for."""
    threads: int
    """Of each worker."""
    lanes: int = 0
    """How many were asked for; 0: left to the recipe."""
    runs: Sequence[FinishedRun] = ()
    """In the order of the repeats."""
    why_not: str = ""
    """Why it did not run, or why not every repeat did."""


def heading(asked: str, ways: Sequence[Measured]) -> str:
    """Return a comparison's title: what the ways trained, for how long and how often; `asked` where none did."""
    counts = [len(way.runs) for way in ways if way.runs]
    if not counts:
        return asked
    setup = next(way.runs[0].setup for way in ways if way.runs)
    what = trained(setup.recipe.name, (way.runs[0].setup.plan.lanes for way in ways if way.runs))
    most = max(counts)
    often = f"{'up to ' if min(counts) < most else ''}{most} repeats each" if most > 1 else "one run each"
    return f"{what}, {plural(setup.plan.steps, 'step')}, {often}"


def judge(title: str, ways: Sequence[Measured], *, settings: Mapping[str, Setting] | None = None) -> Comparison:
    """Put the ways side by side: figures, speed-up, parity, reasons, notes and a recommendation."""
    rows = with_speed_up([_row(way) for way in ways])
    runs = {way.name: tuple(way.runs) for way in ways if way.runs}
    first = next((own[0] for own in runs.values()), None)
    firsts = {own[0].setup.plan.lanes: own[0] for own in reversed(runs.values())}
    rows = [_placed(row, runs.get(row.name, ()), firsts.get(row.lanes), first) for row in rows]
    cpus = {name: own[0].setup.cpus for name, own in runs.items()}
    alike = {row.lanes: [other for other in rows if other.lanes == row.lanes] for row in rows}
    rows = [replace(row, why=why.why(row, alike[row.lanes], cpus.get(row.name))) for row in rows]
    rows = [
        replace(row, notes=notes(row, runs.get(row.name, ()), first, way.why_not))
        for row, way in zip(rows, ways, strict=True)
    ]
    hosts = tuple(dict.fromkeys(rank.host for row in rows for rank in row.ranks if rank.host))
    return Comparison(
        title=title,
        rows=tuple(rows),
        recommendation=recommend(rows, _usable_cpus(first, hosts)),
        settings={**(shared_settings(first, list(firsts)) if first else {}), **(settings or {})},
        versions=dict(first.setup.versions) if first else {},
        hosts=hosts,
        curve=curve(rows),
        runs=runs,
    )


def _usable_cpus(first: FinishedRun | None, hosts: Sequence[str]) -> int:
    """Return the CPUs that could compute; 0 if an accelerator does, or if there are several hosts."""
    return first.setup.cpus if first is not None and first.result.device == "cpu" and len(hosts) == 1 else 0


def shared_settings(run: FinishedRun, lanes: Sequence[int]) -> dict[str, Setting]:
    """Return what all rows of a comparison share, from one of its runs, and the numbers of lanes that there are."""
    setup = run.setup
    return {
        "recipe": setup.recipe.name,
        "global_batch": setup.recipe.global_batch,
        "lanes": ", ".join(map(str, sorted(lanes))) if len(lanes) > 1 else setup.plan.lanes,
        "seed": setup.recipe.seed,
        "steps": setup.plan.steps,
        "samples": setup.plan.samples,
        "launcher": setup.spec.launcher,
        "device": run.result.device,
        "sync_batchnorm": setup.spec.sync_batchnorm,
        "cpu": setup.cpu,
        "cpus": setup.cpus,
    }


def _row(way: Measured) -> Row:
    row = summarise(way.name, way.workers, way.threads, way.runs, "" if way.runs else way.why_not)
    return replace(row, strategy=way.strategy, lanes=way.runs[0].setup.plan.lanes if way.runs else way.lanes)


def _placed(
    row: Row, runs: Sequence[FinishedRun], first_of_lanes: FinishedRun | None, first: FinishedRun | None
) -> Row:
    """Add what a row is to the first one with as many lanes, and what its ranks are to each other."""
    if not runs or first_of_lanes is None:
        return row
    if runs[0] is not first_of_lanes:
        judged = parity.parity(first_of_lanes, runs[0])
    else:
        judged = parity.FIRST if runs[0] is first else parity.first_of_its_lanes(row.lanes)
    return replace(
        row,
        parity=judged,
        slowest_rank=why.slowest_rank(row.ranks),
        overlap=why.overlap(row.ranks),
    )


def with_speed_up(rows: Sequence[Row]) -> list[Row]:
    """Fill in the speed-up over `single` with the same lanes and threads, and over `single` with the most threads."""
    alone = [row for row in rows if row.strategy == BASELINE and row.step_seconds]
    if not alone:
        return list(rows)
    least, widest = (choose(alone, key=lambda row: row.threads) for choose in (min, max))
    bases = {row.lanes: row for row in reversed(alone) if row.threads == least.threads}
    return [_against(row, bases.get(row.lanes), widest if widest.threads > least.threads else None) for row in rows]


def _against(row: Row, base: Row | None, widest: Row | None) -> Row:
    if not row.step_seconds or base is None or not base.step_seconds:
        return row
    faster = base.step_seconds / row.step_seconds
    return replace(
        row,
        speed_up=faster,
        speed_up_all_cores=widest.step_seconds / row.step_seconds if widest and widest.step_seconds else None,
        efficiency=faster / (row.workers * row.threads / base.threads),
    )


def curve(rows: Sequence[Row]) -> tuple[Point, ...]:
    """Return the scaling curves, where more than one number of workers was measured.

    Every curve starts at `single`, one worker with the threads that each worker of the others has.
    """
    bases = {row.lanes: row for row in rows if row.strategy == BASELINE and row.efficiency == 1.0}
    many = [row for row in rows if row.strategy != BASELINE and row.samples_per_second]
    if len({row.workers for row in many}) + bool(bases) < 2:
        return ()
    several = len({row.lanes for row in many}) > 1
    points = []
    for strategy, lanes in dict.fromkeys((row.strategy, row.lanes) for row in many):
        own = [row for row in many if (row.strategy, row.lanes) == (strategy, lanes)]
        first = [bases[lanes]] if lanes in bases and all(row.workers > 1 for row in own) else []
        ascending = sorted(first + own, key=lambda row: row.workers)
        points += [_point(strategy, lanes if several else None, row) for row in ascending]
    return tuple(points)


def _point(strategy: str, lanes: int | None, row: Row) -> Point:
    return Point(
        strategy=strategy,
        workers=row.workers,
        lanes=lanes,
        samples_per_second=row.samples_per_second or 0.0,
        speed_up=row.speed_up,
        efficiency=row.efficiency,
    )
