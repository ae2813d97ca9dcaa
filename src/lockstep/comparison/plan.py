"""The plan of a comparison: which ways, in which order, for how long. Pure, but for the file it is kept in.

    comparison folder    plan.json           every setting, written before the first run
                         single-1, ddp-1...  run folders: way and repeat
                         report.html, ...    what was made of them

A comparison that was interrupted goes on from its folder: the plan is read back, finished runs are kept.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lockstep.errors import BadInput
from lockstep.registry import BASELINE, describe
from lockstep.report.units import plural
from lockstep.train.records import write_document
from lockstep.train.schema.plan_json import NAME, ComparisonPlan, Way, read_comparison_plan
from lockstep.train.spec import RunSpec, source_of, versions

NEW = "Start a new comparison"


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
    runs = []
    for repeat in range(1, plan.repeats + 1):
        order = list(plan.ways)
        random.Random(f"order of repeat {repeat}").shuffle(order)  # noqa: S311 - not for secrets
        runs += [(repeat, way) for way in order]
    return runs


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
    write_document(folder / NAME, plan)


def read_plan(folder: Path) -> ComparisonPlan:
    """Read a plan back, and refuse to go on with other versions or another recipe: the rows would not be comparable."""
    if not (folder / NAME).is_file():
        raise BadInput(f"{folder} has no {NAME}: --resume wants the folder of an earlier `lockstep compare`")
    plan, here = read_comparison_plan(folder), versions()
    made = plan.versions
    other = [f"{name} {made.get(name)}, here {here[name]}" for name in here if made.get(name) != here[name]]
    if other:
        raise BadInput(f"{folder} was begun with other versions ({'; '.join(other)}). {NEW}")
    if plan.source != source_of(plan.ways[0].spec.recipe):
        raise BadInput(f"the recipe {plan.ways[0].spec.recipe} has changed since {folder} was begun. {NEW}")
    return plan
