"""What a comparison was asked for, made into its plan; and what became of it, judged. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from lockstep.comparison.defaults import REPEATS, SECONDS, STEPS
from lockstep.comparison.plan import ways
from lockstep.comparison.predictions import with_predictions
from lockstep.comparison.run import Ran
from lockstep.errors import BadInput
from lockstep.registry import PEERS, STRATEGIES, describe
from lockstep.report.compare import Comparison, heading, judge
from lockstep.report.wording import Setting, trained
from lockstep.train.schema.plan_json import ComparisonPlan
from lockstep.train.spec import DEFAULT_RECIPE, RunSpec, source_of, stem, versions
from lockstep.world.resources import usable_cpus


class Rows(NamedTuple):
    """What the rows of a comparison differ in."""

    strategies: list[str]
    """By name."""
    workers: list[int]
    """How many, ascending."""
    lanes: Sequence[int | None]
    """How many, ascending; None: as the recipe says, else as many as the most workers."""


def asked_strategies(typed: Sequence[str] | None, *, peers: bool) -> list[str]:
    """Return the strategies of a comparison by name, all but the peers where nothing is typed."""
    names = STRATEGIES.names() if typed is None else [name.strip() for name in typed if name.strip()]
    if not names:
        raise BadInput("--strategies is empty: give at least one, e.g. --strategies single,torch-ddp")
    for name in names:
        describe(name)
    return names + [name for name in PEERS.names() if peers and name not in names]


def new_plan(
    given: dict[str, Any], rows: Rows, repeats: int | None, time_limit: float | None, command: str
) -> ComparisonPlan:
    """Return the plan for what was asked: `given` are fields of RunSpec, `command` what gives this comparison again."""
    short = "steps" not in given and "epochs" not in given
    decided = {
        "recipe": DEFAULT_RECIPE,
        "default_lanes": max(rows.workers),
        "most_steps": STEPS if short else None,
        "progress": False,
    }
    spec = RunSpec(**{**decided, **given})
    return ComparisonPlan(
        title=trained(stem(spec.recipe), filter(None, rows.lanes)),
        command=command,
        ways=with_predictions(ways(spec, *rows, usable_cpus())),
        repeats=repeats or REPEATS,
        time_limit=SECONDS if time_limit is None and repeats is None and short else time_limit,
        source=source_of(spec.recipe),
        versions=versions(),
    )


def judged(plan: ComparisonPlan, ran: Ran) -> Comparison:
    """Put what ran side by side, with the settings that a report names."""
    settings: dict[str, Setting] = {"command": plan.command, "repeats": plan.repeats}
    settings["order"] = "interleaved, shuffled in every repeat; the first begins with single and ddp"
    if ran.stopped:
        settings["stopped"] = ran.stopped
    return judge(heading(plan.title, ran.ways), ran.ways, settings=settings)
