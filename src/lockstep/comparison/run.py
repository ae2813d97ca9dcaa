"""Running a plan: one run after another, each way's failures kept to itself, and an end that can be gone on from."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from lockstep.comparison.display import Display
from lockstep.comparison.plan import fits, turns
from lockstep.errors import BadInput, BadRecipe, LockstepError
from lockstep.launch.start import start_run
from lockstep.report.collect import FinishedRun, read_finished, read_run
from lockstep.report.compare import Measured
from lockstep.report.notes import reason
from lockstep.report.wording import shared
from lockstep.train.schema.plan_json import ComparisonPlan, Way

MOST_WEIGHTS = 64 << 20
"""Bytes of a way's final weights that are kept: every way has some, and only a first repeat's are compared."""

FURTHER = "Go on with --resume; --time-limit gives more time, --steps makes runs shorter"


@dataclass
class WayProgress:
    """What has become of one way so far."""

    way: Way
    runs: list[FinishedRun] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    """How long each run took, start and end included."""
    why_not: str = ""
    refused: BadInput | None = None


@dataclass
class Ran:
    """What has become of a plan."""

    ways: list[Measured]
    """With the runs that ended well."""
    interrupted: bool = False
    """Whether somebody stopped it."""
    stopped: str = ""
    """Why not every repeat was run, if not."""


def run_all(plan: ComparisonPlan, out: Path, display: Display) -> Ran:
    """Run what the plan still lacks.

    A way that fails becomes a row that says why, and the rest goes on; if every way was refused, what was asked is
    at fault, and that is raised instead; a recipe that cannot be loaded is raised at once. Ctrl-C and SIGTERM end the
    run in progress, and what is done is returned.
    """
    every = {way.name: WayProgress(way) for way in plan.ways}
    began = time.monotonic()
    ran = Ran(ways=[])
    with display:
        try:
            for number, (repeat, way) in enumerate(turns(plan)):
                if every[way.name].why_not or _kept(every[way.name], out / way.folder(repeat)):
                    continue
                lengths = [seconds for one in every.values() for seconds in one.seconds]
                if not fits(plan.time_limit, time.monotonic() - began, every[way.name].seconds, lengths):
                    ran.stopped = f"the time limit of {plan.time_limit:g} s"
                    continue
                display.begin(way, repeat, number, out / way.folder(repeat))
                _run(every[way.name], repeat, out / way.folder(repeat), display)
        except (KeyboardInterrupt, SystemExit):
            ran.interrupted, ran.stopped = True, "interrupted"
        except BadRecipe:
            if not any(one.runs for one in every.values()):
                shutil.rmtree(out)  # nothing ran, so nothing is in it
            raise
    refused = [one.refused for one in every.values() if one.refused is not None]
    if len(refused) == len(every) and not any(one.runs for one in every.values()):
        shutil.rmtree(out)  # nothing ran, so nothing is in it
        raise BadInput(_refusal(zip(every, refused, strict=True))) from refused[0]
    ran.ways = [_measured(one, ran.stopped) for one in every.values()]
    return ran


def _run(progress: WayProgress, repeat: int, folder: Path, display: Display) -> None:
    began = time.monotonic()
    try:
        spec = replace(progress.way.spec, most_weights=MOST_WEIGHTS if repeat == 1 else 0)
        run = read_finished(start_run(spec, folder))
    except BadRecipe:
        raise  # no other way would get further
    except LockstepError as error:
        why = reason(str(error), folder)
        progress.why_not = f"repeat {repeat}: {why}" if repeat > 1 else why
        if isinstance(error, BadInput):
            progress.refused = error
            display.refused(progress.way, progress.why_not)
        else:
            display.failed(progress.way, repeat, why)
        return
    progress.runs.append(run)
    progress.seconds.append(time.monotonic() - began)
    display.done(progress.way, repeat, run.result.step_seconds)


def _kept(progress: WayProgress, folder: Path) -> bool:
    """Keep a finished run of an earlier start; clear away one that was not finished, to be run again."""
    if not folder.exists():
        return False
    try:
        run = read_run(folder)
    except BadInput:
        run = None
    if not isinstance(run, FinishedRun):
        shutil.rmtree(folder)
        return False
    progress.runs.append(run)
    return True


def _refusal(errors: Iterable[tuple[str, BadInput]]) -> str:
    """Return why nothing ran, each reason once."""
    said = shared((name, str(error)) for name, error in errors)
    if len(said) == 1:
        return f"no way can run: {said[0][1]}"
    return "\n  ".join(["no way can run:", *(f"{names}: {why}" for names, why in said)])


def _measured(one: WayProgress, stopped: str) -> Measured:
    spec = one.way.spec
    return Measured(
        name=one.way.name,
        strategy=spec.strategy,
        workers=spec.workers,
        threads=spec.threads or 0,
        lanes=spec.lanes or 0,
        runs=tuple(one.runs),
        why_not=one.why_not or ("" if one.runs else f"its turn did not come: {stopped}. {FURTHER}"),
    )
