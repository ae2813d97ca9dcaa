"""The plan of a comparison: which ways, in which order, for how long. Pure, but for the file it is kept in.

    comparison folder    plan.json           every setting, written before the first run
                         single-1, ddp-1...  run folders: way and repeat
                         report.html, ...    what was made of them

A comparison that was interrupted goes on from its folder: the plan is read back, finished runs are kept.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from lockstep.errors import BadInput
from lockstep.registry import BASELINE, describe
from lockstep.report.gather import PLAN
from lockstep.report.units import plural
from lockstep.train.records import read_json, write_json
from lockstep.train.spec import RunSpec, source_of, versions

NEW = "Start a new comparison"


@dataclass(frozen=True, kw_only=True)
class Way:
    """One row to be."""

    name: str
    """The strategy, and what tells it from its neighbours."""
    spec: RunSpec
    """What to run."""

    def folder(self, repeat: int) -> str:
        """Return the name of a repeat's run folder; repeats count from 1."""
        return f"{self.name.replace(', ', '-').replace(' ', '-')}-{repeat}"


@dataclass(frozen=True, kw_only=True)
class ComparisonPlan:
    """A comparison as asked for."""

    title: str
    """What all ways train, as far as it is known before one has run."""
    command: str
    """As typed."""
    ways: tuple[Way, ...]
    """The rows."""
    repeats: int
    """How often each is run."""
    time_limit: float | None = None
    """Seconds after which no repeat is begun that would end later, counted anew when a comparison goes on."""
    source: str = ""
    """SHA-256 of the recipe's file; empty for a built-in one."""


def ways(spec: RunSpec, strategies: Sequence[str], workers: Sequence[int], cpus: int) -> tuple[Way, ...]:
    """Return the rows of a comparison: the same lanes and threads for all, and `single` on all cores.

    Threads not given means CPUs // workers, of the largest number of workers, for every row: kernels give other bits
    at other thread counts. Of several numbers of workers, 1 is what `single` is.
    """
    if len(set(strategies)) != len(strategies):
        raise BadInput(f"--strategies {','.join(strategies)}: each at most once")
    most = max(workers)
    threads, lanes = spec.threads, spec.lanes
    common = replace(
        spec,
        threads=max(1, cpus // most) if threads is None else threads,
        lanes=most if lanes is None else lanes,
    )
    rows: list[Way] = []
    for name in strategies:
        counts = [1] if describe(name).workers(most) == 1 else list(workers)
        if BASELINE in strategies and len(counts) > 1:
            counts = [count for count in counts if count > 1]
        for count in counts:
            label = name if len(counts) == 1 else f"{name}, {plural(count, 'worker')}"
            rows.append(Way(name=label, spec=replace(common, strategy=name, workers=count)))
    if BASELINE in strategies and cpus > (common.threads or 1):
        place = next(place for place, way in enumerate(rows) if way.name == BASELINE)
        wide = replace(rows[place].spec, threads=cpus)
        rows.insert(place + 1, Way(name=f"{BASELINE}, {cpus} threads", spec=wide))
    return tuple(rows)


def turns(plan: ComparisonPlan) -> list[tuple[int, Way]]:
    """Return the runs in the order to be done: every way once, in a shuffled order, then again in another.

    A noisy minute then hurts all ways alike, and none always follows the same neighbour. The order is a function of
    the plan, so that a comparison that is resumed goes on where it was.
    """
    found = []
    for repeat in range(1, plan.repeats + 1):
        order = list(plan.ways)
        random.Random(f"order of repeat {repeat}").shuffle(order)  # noqa: S311 - not for secrets
        found += [(repeat, way) for way in order]
    return found


def fits(limit: float | None, elapsed: float, own: Sequence[float], all_runs: Sequence[float]) -> bool:
    """Say whether one more run would end in time.

    A way that has run is expected to take as long as its longest run; one that has not gets its first run if even
    the shortest run so far would fit.
    """
    if limit is None:
        return True
    expected = max(own) if own else min(all_runs, default=0.0)
    return elapsed + expected <= limit


def write_plan(folder: Path, plan: ComparisonPlan) -> None:
    """Write plan.json, before anything runs."""
    write_json(folder / PLAN, {**asdict(plan), "versions": versions()})


def read_plan(folder: Path) -> ComparisonPlan:
    """Read a plan back, and refuse to go on with other versions or another recipe: the rows would not be comparable."""
    path = folder / PLAN
    if not path.is_file():
        raise BadInput(f"{folder} has no {PLAN}: --resume wants the folder of an earlier `lockstep compare`")
    content = read_json(path)
    made, here = content.get("versions"), versions()
    if not isinstance(made, Mapping):
        raise BadInput(f"{path} has no versions: it was changed, or written by another version. {NEW}")
    other = [f"{name} {made.get(name)}, here {here[name]}" for name in here if made.get(name) != here[name]]
    if other:
        raise BadInput(f"{folder} was begun with other versions ({'; '.join(other)}). {NEW}")
    plan = _plan(path, content)
    if plan.ways and plan.source != source_of(plan.ways[0].spec.recipe):
        raise BadInput(f"the recipe {plan.ways[0].spec.recipe} has changed since {folder} was begun. {NEW}")
    return plan


def _plan(path: Path, content: Mapping[str, Any]) -> ComparisonPlan:
    try:
        known = {field.name for field in fields(RunSpec)}
        found = []
        for way in content["ways"]:
            if set(way["spec"]) != known:
                raise KeyError("spec")
            found.append(Way(name=str(way["name"]), spec=RunSpec(**way["spec"])))
        limit = content["time_limit"]
        return ComparisonPlan(
            title=str(content["title"]),
            command=str(content["command"]),
            ways=tuple(found),
            repeats=int(content["repeats"]),
            time_limit=None if limit is None else float(limit),
            source=str(content["source"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(
            f"{path} is not readable ({error!r}): it was changed, or written by another version. {NEW}"
        ) from error
