"""The plan of a comparison: which ways, in which order, for how long. Pure, but for the file it is kept in.

    comparison folder    plan.json           every setting, written before the first run
                         single-1, ddp-1...  run folders: way and repeat
                         report.html, ...    what was made of them

A comparison that was interrupted goes on from its folder: the plan is read back, finished runs are kept.
"""

from __future__ import annotations

import random
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from lockstep.errors import BadInput
from lockstep.registry import BASELINE, DEFAULT, describe
from lockstep.report.units import plural
from lockstep.train.recipe_trust import check_recipe
from lockstep.train.records import write_document
from lockstep.train.schema.plan_json import NAME, ComparisonPlan, Way, read_comparison_plan
from lockstep.train.spec import RunSpec, source_of, versions
from lockstep.world.resources import DEFAULT_THREADS

NEW = "Start a new comparison"


def ways(
    spec: RunSpec, strategies: Sequence[str], workers: Sequence[int], lanes: Sequence[int | None], cpus: int
) -> tuple[Way, ...]:
    """Return the rows of a comparison: the same threads for all, every number of lanes, and `single` on all cores.

    Lanes that are None are the recipe's. Of several numbers of workers, 1 is what `single` is. Where accelerators are
    asked for by their kind, cores do not matter, and `ddp` without the promise of bits shows what the promise costs.
    """
    if len(set(strategies)) != len(strategies):
        raise BadInput(f"--strategies {','.join(strategies)}: each at most once")
    threads = spec.threads or DEFAULT_THREADS
    common = replace(spec, threads=threads)
    rows = [
        Way(name=_label(name, counts, count, lanes, own), spec=replace(common, strategy=name, workers=count, lanes=own))
        for own in lanes
        for name in strategies
        for counts in [_counts(name, workers, BASELINE in strategies)]
        for count in counts
    ]
    if spec.device not in ("auto", "cpu"):
        exact = [place for place, way in enumerate(rows) if way.spec.strategy == DEFAULT and way.spec.workers > 1]
        for place in exact[-1:]:
            rows.insert(
                place + 1, Way(name=f"{rows[place].name}, inexact", spec=replace(rows[place].spec, exact=False))
            )
    elif BASELINE in strategies and cpus > threads:
        place = next(place for place, way in enumerate(rows) if way.spec.strategy == BASELINE)
        wide = Way(name=f"{rows[place].name}, {cpus} threads", spec=replace(rows[place].spec, threads=cpus))
        rows.insert(place + 1, wide)
    return tuple(rows)


def _counts(strategy: str, workers: Sequence[int], with_baseline: bool) -> list[int]:
    """Return the numbers of workers that a strategy is run with."""
    if describe(strategy).workers(max(workers)) == 1:
        return [1]
    return [count for count in workers if count > 1 or not with_baseline] if len(workers) > 1 else list(workers)


def _label(strategy: str, counts: Sequence[int], count: int, lanes: Sequence[int | None], own: int | None) -> str:
    """Return a row's name: the strategy, and what tells it from its neighbours."""
    parts = [strategy]
    if len(counts) > 1:
        parts.append(plural(count, "worker"))
    if len(lanes) > 1 and own is not None:
        parts.append(plural(own, "lane"))
    return ", ".join(parts)


def turns(plan: ComparisonPlan) -> list[tuple[int, Way]]:
    """Return the runs in the order to be done: every way once, in a shuffled order, then again in another.

    A noisy minute then hurts all ways alike, and none always follows the same neighbour. The order is a function of
    the plan, so that a comparison that is resumed goes on where it was. The first time, what all others are compared
    with goes first, and what only shows more threads last: a time limit may leave no room for all.
    """
    runs = []
    for repeat in range(1, plan.repeats + 1):
        order = list(plan.ways)
        random.Random(f"order of repeat {repeat}").shuffle(order)  # noqa: S311 - not for secrets
        if repeat == 1:
            fewest = min(way.spec.threads or 0 for way in order)
            order.sort(key=lambda way: _importance(way, more_threads=(way.spec.threads or 0) > fewest))
        runs += [(repeat, way) for way in order]
    return runs


def _importance(way: Way, *, more_threads: bool) -> int:
    return 3 if more_threads else {BASELINE: 0, DEFAULT: 1}.get(way.spec.strategy, 2)


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


def read_plan(folder: Path, recipe: str | None = None) -> ComparisonPlan:
    """Read a plan back, and refuse to go on with other versions or another recipe: the rows would not be comparable.

    `recipe` is typed by the user, where the folder alone is not trusted, see recipe_trust.py.
    """
    if not (folder / NAME).is_file():
        raise BadInput(f"{folder} has no {NAME}: --resume wants the folder of an earlier `lockstep compare`")
    plan, here = read_comparison_plan(folder), versions()
    made = plan.versions
    other = [f"{name} {made.get(name)}, here {here[name]}" for name in here if made.get(name) != here[name]]
    if other:
        raise BadInput(f"{folder} was begun with other versions ({'; '.join(other)}). {NEW}")
    if recipe is not None:
        ways = [structs.replace(way, spec=replace(way.spec, recipe=recipe)) for way in plan.ways]
        plan = structs.replace(plan, ways=tuple(ways))
    if plan.source != source_of(plan.ways[0].spec.recipe):
        raise BadInput(f"the recipe {plan.ways[0].spec.recipe} has changed since {folder} was begun. {NEW}")
    if recipe is None:
        command = f"lockstep compare RECIPE --resume {shlex.quote(str(folder))}"
        for named in dict.fromkeys(way.spec.recipe for way in plan.ways):
            check_recipe(named, plan.source, folder, command)
    return plan
