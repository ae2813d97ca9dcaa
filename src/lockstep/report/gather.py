"""A comparison from folders of earlier runs, also of other machines: what belongs together, and whether it may.

1. A folder is a run (it has run.json) or a comparison (its folders are runs).
2. All runs must have trained the same thing: recipe, batch, seed, steps. The number of lanes may differ.
3. Runs that were asked for alike are repeats of one row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from lockstep.errors import BadInput
from lockstep.registry import BASELINE
from lockstep.report.collect import FinishedRun, Run, read_run, why_unfinished
from lockstep.report.compare import Comparison, Measured, heading, judge
from lockstep.report.files import PAGE
from lockstep.report.notes import reason
from lockstep.report.units import plural
from lockstep.report.wording import trained
from lockstep.train.records import read_bytes
from lockstep.train.schema.plan_json import ComparisonPlan, read_comparison_plan
from lockstep.train.schema.reading import DOCUMENT_BYTES
from lockstep.train.schema.result_json import Done
from lockstep.train.schema.run_json import NAME as SETUP
from lockstep.train.spec import RunSpec


@dataclass(frozen=True)
class Kind:
    """What tells rows apart."""

    strategy: str
    workers: int
    lanes: int
    threads: int
    launcher: str
    backend: str
    device: str
    sync_batchnorm: bool
    exact: bool
    hosts: tuple[str, ...]
    torch: str


def gather(folders: Sequence[Path]) -> Comparison:
    """Return the comparison of everything in these folders, or refuse and say which two do not go together."""
    # `report runs/*` names the reports that were made there before, too.
    folders = [folder for folder in folders if not is_report(folder)] or list(folders)
    paths = [path for folder in folders for path in find_runs(folder)]
    runs = [read_run(path) for path in dict.fromkeys(path.absolute() for path in paths)]
    check_comparable(runs)
    plans = [(folder, plan) for folder in folders if (plan := _plan(folder)) is not None]
    planned = [way for folder, plan in plans for way in _planned(folder, plan)]
    groups = group(sorted(runs, key=lambda run: (_place(run, planned), run.setup.created)))
    labels = names(list(groups))
    ways = [_measured(labels[key], key, own) for key, own in groups.items()]
    ways += [way for way in planned if not any(_same(way, key) for key in groups)]
    setup = runs[0].setup
    title = heading(trained(setup.recipe.name, (run.setup.plan.lanes for run in runs)), ways)
    asked = plans[0][1] if plans and len(folders) == 1 else None
    return judge(title, ways, settings={"command": asked.command, "repeats": asked.repeats} if asked else {})


def is_report(folder: Path) -> bool:
    """Say whether a folder holds a report and no run."""
    has_runs = (folder / SETUP).is_file() or any(folder.glob(f"*/{SETUP}"))
    return (folder / PAGE).is_file() and not has_runs


def find_runs(folder: Path) -> list[Path]:
    """Return the run folders that a folder is or holds."""
    if not folder.is_dir():
        raise BadInput(f"{folder} is not a folder" if folder.exists() else f"{folder} does not exist")
    if (folder / SETUP).is_file():
        return [folder]
    inside = sorted(path.parent for path in folder.glob(f"*/{SETUP}"))
    if not inside:
        raise BadInput(f"{folder} is not a run folder (it has no {SETUP}), and holds none")
    return inside


def check_comparable(runs: Sequence[Run]) -> None:
    """Refuse runs that trained something else than the first."""
    first = runs[0]
    for run in runs[1:]:
        mine, theirs = _trained(first), _trained(run)
        other = [f"{name} {mine[name]} and {theirs[name]}" for name in mine if mine[name] != theirs[name]]
        if other:
            raise BadInput(
                f"{first.folder} and {run.folder} cannot be compared: {', '.join(other)}. Give folders of runs that "
                "trained the same thing, or make a report of each"
            )


def _trained(run: Run) -> dict[str, str | int]:
    recipe, plan = run.setup.recipe, run.setup.plan
    return {
        "recipe": recipe.name,
        "recipe file with SHA-256": recipe.source[:12] or "none",
        "global batch": recipe.global_batch,
        "seed": recipe.seed,
        "steps": plan.steps,
        "samples": "unknown" if plan.samples is None else plan.samples,
    }


def kind(run: Run) -> Kind:
    """Return what a run has in common with its repeats; what only a result tells is taken from the settings else."""
    spec = run.setup.spec
    used = run.result if isinstance(run.result, Done) else spec
    return Kind(
        strategy=spec.strategy,
        workers=spec.workers,
        lanes=run.setup.plan.lanes,
        threads=used.threads or 0,
        launcher=spec.launcher,
        backend=used.backend or "",
        device=used.device,
        sync_batchnorm=spec.sync_batchnorm,
        exact=spec.exact,
        hosts=tuple(sorted(set(run.hosts) - {""})) or (run.setup.host,),
        torch=run.setup.versions.get("torch") or "",
    )


def group(runs: Sequence[Run]) -> dict[Kind, list[Run]]:
    """Return the repeats of each row; one that failed belongs to those that were asked for alike."""
    groups: dict[Kind, list[Run]] = {}
    done = {kind(run): _asked(run) for run in runs if isinstance(run, FinishedRun)}
    for run in runs:
        key = kind(run)
        if not isinstance(run, FinishedRun):  # it may not have come to know its threads, backend and device
            key = next((alike for alike, asked in done.items() if asked == _asked(run)), key)
        groups.setdefault(key, []).append(run)
    return groups


def _asked(run: Run) -> tuple[RunSpec, str]:
    """Return what was asked for, and where; a comparison predicts memory, and keeps the first repeat's weights."""
    return replace(run.setup.spec, most_weights=None, predicted_memory=None), run.setup.host


def names(kinds: Sequence[Kind]) -> dict[Kind, str]:
    """Return the shortest names that tell the rows apart: the strategy, and what differs within it."""
    labels = {}
    for one in kinds:
        alike = [other for other in kinds if other.strategy == one.strategy]
        parts = [one.strategy]
        if _differ(alike, "workers"):
            parts.append(plural(one.workers, "worker"))
        if _differ(kinds, "lanes"):
            parts.append(plural(one.lanes, "lane"))
        if one.threads != min(other.threads for other in alike):
            parts.append(plural(one.threads, "thread"))
        parts += [str(getattr(one, name)) for name in ("launcher", "backend", "device") if _differ(alike, name)]
        if one.sync_batchnorm and _differ(alike, "sync_batchnorm"):
            parts.append("SyncBatchNorm")
        if not one.exact and _differ(alike, "exact"):
            parts.append("inexact")
        if _differ(alike, "hosts"):
            parts.append(f"on {' and '.join(one.hosts)}")
        if _differ(alike, "torch"):
            parts.append(f"torch {one.torch}")
        labels[one] = ", ".join(part for part in parts if part)
    return labels


def _differ(kinds: Sequence[Kind], name: str) -> bool:
    return len({getattr(one, name) for one in kinds}) > 1


def _measured(name: str, key: Kind, runs: Sequence[Run]) -> Measured:
    failed = [reason(why_unfinished(run), run.folder) for run in runs if not isinstance(run, FinishedRun)]
    return Measured(
        name=name,
        strategy=key.strategy,
        workers=key.workers,
        threads=key.threads,
        lanes=key.lanes,
        runs=tuple(run for run in runs if isinstance(run, FinishedRun)),
        why_not=failed[0] if failed else "",
    )


def _planned(folder: Path, plan: ComparisonPlan) -> list[Measured]:
    """Return the ways that a comparison meant to run, with the reason for one that has no run folder."""
    why = _reasons(folder)
    return [
        Measured(
            name=way.name,
            strategy=way.spec.strategy,
            workers=way.spec.workers,
            threads=way.spec.threads or 0,
            lanes=way.spec.lanes or 0,
            why_not=why.get(way.name) or "not run",
        )
        for way in plan.ways
    ]


def _plan(folder: Path) -> ComparisonPlan | None:
    """Return what was asked for, if that is known: it only adds what the run folders do not say."""
    try:
        return read_comparison_plan(folder)
    except BadInput:
        return None


class RowReason(msgspec.Struct):
    """What is read back of a row of comparison.json."""

    name: str
    why_not: str = ""


class Reasons(msgspec.Struct):
    """What is read back of comparison.json: an earlier report knows why a way never had a run folder."""

    rows: tuple[RowReason, ...]


def _reasons(folder: Path) -> Mapping[str, str]:
    try:
        earlier = msgspec.json.decode(read_bytes(folder / "comparison.json", DOCUMENT_BYTES), type=Reasons)
    except (BadInput, ValueError, RecursionError):
        return {}
    return {row.name: row.why_not for row in earlier.rows}


def _same(way: Measured, key: Kind) -> bool:
    alike = (way.strategy, way.workers) == (key.strategy, key.workers)
    return alike and key.threads in (way.threads, 0) and way.lanes in (key.lanes, 0)


def _place(run: Run, planned: Sequence[Measured]) -> int:
    """Return where a run's row stands: as planned, else `single` first, since the others are measured by it."""
    key = kind(run)
    place = next((place for place, way in enumerate(planned) if _same(way, key)), len(planned))
    return place if planned else int(key.strategy != BASELINE)
