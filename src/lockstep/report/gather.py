"""A comparison from folders of earlier runs, also of other machines: what belongs together, and whether it may.

1. A folder is a run (it has run.json) or a comparison (its folders are runs).
2. All runs must have trained the same thing: recipe, batch, lanes, seed, steps.
3. Runs that were asked for alike are repeats of one row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.errors import BadInput
from lockstep.report.collect import Run, check_order, read_run
from lockstep.report.compare import Comparison, Measured, heading, judge
from lockstep.report.notes import reason
from lockstep.report.units import plural
from lockstep.report.wording import trained
from lockstep.train.records import read_json

PLAN = "plan.json"


@dataclass(frozen=True)
class Kind:
    """What tells rows apart."""

    strategy: str
    workers: int
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
    found = [path for folder in folders for path in find_runs(folder)]
    runs = [read_any(path) for path in dict.fromkeys(path.absolute() for path in found)]
    check_comparable(runs)
    planned = [way for folder in folders for way in _planned(folder)]
    groups = group(sorted(runs, key=lambda run: (_place(run, planned), float(run.order.get("created") or 0.0))))
    labels = names(list(groups))
    ways = [_measured(labels[key], key, own) for key, own in groups.items()]
    ways += [way for way in planned if not any(_same(way, key) for key in groups)]
    recipe, plan = runs[0].order["recipe"], runs[0].order["plan"]
    title = heading(trained(recipe["name"], plan["lanes"]), ways)
    asked = _plan(folders[0]) if len(folders) == 1 else {}
    kept = {name: asked[name] for name in ("command", "repeats") if name in asked}
    return judge(title, ways, settings=kept or {"folders": [str(folder) for folder in folders]})


def find_runs(folder: Path) -> list[Path]:
    """Return the run folders that a folder is or holds."""
    if not folder.is_dir():
        raise BadInput(f"{folder} is not a folder" if folder.exists() else f"{folder} does not exist")
    if (folder / "run.json").is_file():
        return [folder]
    inside = sorted(path.parent for path in folder.glob("*/run.json"))
    if not inside:
        raise BadInput(f"{folder} is not a run folder (it has no run.json), and holds none")
    return inside


def read_any(folder: Path) -> Run:
    """Read a run that may not have ended: one without a result is a failed one."""
    if (folder / "result.json").is_file():
        return read_run(folder)
    order = read_json(folder / "run.json")
    check_order(folder / "run.json", order)
    why = f"it has not ended, or was killed: {folder} has no result.json"
    return Run(folder=folder, order=order, result={"outcome": "failed", "why": why}, losses=())


def check_comparable(runs: Sequence[Run]) -> None:
    """Refuse runs that trained something else than the first."""
    first = runs[0]
    for run in runs[1:]:
        mine, theirs = _trained(first), _trained(run)
        known = [name for name in mine if mine[name] is not None and theirs[name] is not None]
        other = [f"{name} {mine[name]} and {theirs[name]}" for name in known if mine[name] != theirs[name]]
        if other:
            raise BadInput(
                f"{first.folder} and {run.folder} cannot be compared: {', '.join(other)}. Give folders of runs that "
                "trained the same thing, or make a report of each"
            )


def _trained(run: Run) -> dict[str, Any]:
    recipe, plan = run.order["recipe"], run.order["plan"]
    return {
        "recipe": recipe["name"],
        "recipe file with SHA-256": str(recipe["source"])[:12] or "none" if "source" in recipe else None,
        "global batch": recipe["global_batch"],
        "seed": recipe["seed"],
        "lanes": plan["lanes"],
        "steps": plan["steps"],
        "samples": plan.get("samples"),
    }


def kind(run: Run) -> Kind:
    """Return what a run has in common with its repeats."""
    spec, result = run.order["spec"], run.result
    return Kind(
        strategy=spec["strategy"],
        workers=spec["workers"],
        threads=int(result.get("threads") or spec.get("threads") or 0),
        launcher=spec["launcher"],
        backend=str(result.get("backend") or spec.get("backend") or ""),
        device=str(result.get("device") or spec.get("device") or ""),
        sync_batchnorm=bool(spec.get("sync_batchnorm")),
        exact=bool(spec.get("exact", True)),
        hosts=tuple(sorted(set(run.hosts))) or (str(run.order.get("host", "")),),
        torch=str(run.order["versions"].get("torch", "")),
    )


def group(runs: Sequence[Run]) -> dict[Kind, list[Run]]:
    """Return the repeats of each row; one that failed belongs to those that were asked for alike."""
    groups: dict[Kind, list[Run]] = {}
    done = {kind(run): run.order for run in runs if run.done}
    for run in runs:
        key = kind(run)
        if not run.done:  # it may not have come to know its threads, backend and device
            spec, host = run.order["spec"], run.order.get("host")
            alike = (k for k, order in done.items() if (order["spec"], order.get("host")) == (spec, host))
            key = next(alike, key)
        groups.setdefault(key, []).append(run)
    return groups


def names(kinds: Sequence[Kind]) -> dict[Kind, str]:
    """Return the shortest names that tell the rows apart: the strategy, and what differs within it."""
    found = {}
    for one in kinds:
        alike = [other for other in kinds if other.strategy == one.strategy]
        parts = [one.strategy]
        if _differ(alike, "workers"):
            parts.append(plural(one.workers, "worker"))
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
        found[one] = ", ".join(part for part in parts if part)
    return found


def _differ(kinds: Sequence[Kind], name: str) -> bool:
    return len({getattr(one, name) for one in kinds}) > 1


def _measured(name: str, key: Kind, runs: Sequence[Run]) -> Measured:
    failed = [reason(str(run.result.get("why", "")), run.folder) for run in runs if not run.done]
    return Measured(
        name=name,
        strategy=key.strategy,
        workers=key.workers,
        threads=key.threads,
        runs=tuple(run for run in runs if run.done),
        why_not=failed[0] if failed else "",
    )


def _planned(folder: Path) -> list[Measured]:
    """Return the ways that a comparison meant to run, with the reason for one that has no run folder."""
    try:
        specs = [(str(way["name"]), way["spec"]) for way in _plan(folder)["ways"]]
        made = [(name, str(s["strategy"]), int(s["workers"]), int(s["threads"] or 0)) for name, s in specs]
    except (KeyError, TypeError, ValueError):
        return []
    why = _reasons(folder)
    return [
        Measured(name=name, strategy=strategy, workers=workers, threads=threads, why_not=why.get(name, "not run"))
        for name, strategy, workers, threads in made
    ]


def _plan(folder: Path) -> Mapping[str, Any]:
    """Return what was asked for, if that is known: it only adds what the run folders do not say."""
    try:
        return read_json(folder / PLAN)
    except BadInput:
        return {}


def _reasons(folder: Path) -> Mapping[str, str]:
    try:
        rows = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))["rows"]
        return {str(row["name"]): str(row["why_not"] or "not run") for row in rows}
    except (OSError, KeyError, TypeError, ValueError):
        return {}


def _same(way: Measured, key: Kind) -> bool:
    return (way.strategy, way.workers) == (key.strategy, key.workers) and key.threads in (way.threads, 0)


def _place(run: Run, planned: Sequence[Measured]) -> int:
    """Return where a run's row stands: as planned, else `single` first, since the others are measured by it."""
    key = kind(run)
    place = next((place for place, way in enumerate(planned) if _same(way, key)), len(planned))
    return place if planned else int(key.strategy != "single")
