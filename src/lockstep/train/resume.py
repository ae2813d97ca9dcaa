"""Going on with a run: what its folder says, what may be changed, and how the folder is made ready for it.

    run.json                       the settings of the attempt that runs, or ran last; `resumed` lists the ones before
    rank-N.jsonl, result.json ...  of that attempt; its steps begin where its checkpoint stood
    attempt-1/                     what the first attempt left, whole: run.json, rank-N.jsonl, its failure, its result
    attempt-2/                     and so on
    checkpoint-000120.safetensors  the last two checkpoints

The folder is changed in an order that can be broken off anywhere and done again: files are moved into `.attempt-N`,
which then gets its name, and the new run.json comes last.
"""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lockstep.errors import BadInput
from lockstep.recipe import Plan
from lockstep.registry import BASELINE, DEFAULT, LAUNCHERS, describe
from lockstep.train.checkpoint_folder import last_good, prune
from lockstep.train.checkpoint_header import Arithmetic, CheckpointHeader, read_header, refuse_other
from lockstep.train.recipe_trust import check_recipe
from lockstep.train.records import ATTEMPT, cannot_write
from lockstep.train.schema.run_json import NAME, Resumption, Setup, read_setup
from lockstep.train.spec import RunSpec

RECORDS = (
    "rank-*.jsonl",
    "rank-*.error.json",
    "rank-*.stack.txt",
    "fingerprints.jsonl",
    "final.safetensors",
    "result.json",
)
"""What an attempt leaves in the run folder, beside its checkpoints."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How far a run came."""

    folder: Path
    """Of the run."""
    setup: Setup
    """run.json: what was asked last."""
    path: Path
    """The last good checkpoint."""
    header: CheckpointHeader
    """Of it."""


def read_standing(folder: Path) -> Standing:
    """Read a run folder; refuse one that is none, is damaged, or has no good checkpoint."""
    if not folder.is_dir():
        raise BadInput(f"--resume {folder}: there is no such folder; give the run folder of an earlier run")
    setup = read_setup(folder)
    saved, _ = last_good(folder)
    with saved:
        return Standing(folder=folder, setup=setup, path=saved.path, header=read_header(saved.header, str(saved.path)))


def resumed_spec(standing: Standing, given: Mapping[str, Any]) -> RunSpec:
    """Return the settings to go on with: as before, but for what is given (None: not given).

    Lanes and threads are the checkpoint's unless given: the recipe and OMP_NUM_THREADS may be others by now. A recipe
    that is not given must be the user's own, see recipe_trust.py.
    """
    old, asked = standing.setup.spec, {name: value for name, value in given.items() if value is not None}
    if "recipe" not in asked:
        command = f"lockstep run RECIPE --resume {shlex.quote(str(standing.folder))}"
        check_recipe(old.recipe, standing.setup.recipe.source, standing.folder, command)
    arithmetic = standing.header.arithmetic
    workers = asked.get("workers", old.workers)
    strategy = asked.get("strategy") or (DEFAULT if old.strategy == BASELINE and workers > 1 else old.strategy)
    several = describe(strategy).processes(workers) > 1
    default = old.launcher if _starts(old.launcher) else "spawn" if several else "inline"
    if "epochs" in asked:
        asked = {"steps": None, **asked}
    changes = {"lanes": arithmetic.lanes, "threads": arithmetic.threads, "launcher": default, **asked}
    return replace(old, **{**changes, "strategy": strategy, "resume": True})


def _starts(launcher: str) -> bool:
    """Say whether a launcher can be started again without being typed; others started us, or are gone."""
    return launcher in LAUNCHERS and not LAUNCHERS.get(launcher).one_process


def check_standing(standing: Standing, arithmetic: Arithmetic, plan: Plan, patience: int | None = None) -> None:
    """Refuse to go on with something else than was begun, and with what is done."""
    header, folder = standing.header, standing.folder
    refuse_other(header.arithmetic, arithmetic, str(standing.path))
    before = standing.setup.plan
    if before.samples != plan.samples:
        counts = ["an unknown number of" if one is None else one for one in (before.samples, plan.samples)]
        raise BadInput(
            f"the run in {folder} was begun with {counts[0]} samples, and the data has {counts[1]} now: "
            "the order of the samples would be another; use the same data"
        )
    if before.epoch_steps != plan.epoch_steps:
        raise BadInput(
            f"the run in {folder} was begun with {before.epoch_steps} steps per epoch, and there are "
            f"{plan.epoch_steps} now: use drop_last as before"
        )
    if header.step >= plan.steps:
        raise BadInput(
            f"the run in {folder} is complete: {header.step} of {plan.steps} steps are done. To train longer, give "
            "--steps or --epochs"
        )

    best = header.best
    if patience is not None and best is not None and best.stale >= patience:
        raise BadInput(
            f"the run in {folder} is complete: {best.why_stopped(header.step)}. To train longer, "
            f"give a --patience of more than {best.stale}"
        )


def history(standing: Standing, source: str) -> list[Resumption]:
    """Return the attempts so far, with the one that now begins; `source` is the recipe's file as it is now."""
    writer, before = standing.header.writer, standing.setup.recipe.source
    path = standing.setup.spec.recipe.partition(":")[0]
    changed = f"the recipe file {path} was changed since the run began: bits may differ from those of one recipe"
    workers = f"{writer.workers} worker{'' if writer.workers == 1 else 's'}"
    begun = Resumption(
        step=standing.header.step,
        written_by=f"{writer.strategy} on {workers}",
        time=time.time(),
        warnings=(changed,) if source != before else (),
    )
    return [*standing.setup.resumed, begun]


def put_aside(folder: Path) -> None:
    """Move what the last attempt left into a folder of its own; its checkpoints stay."""
    number = 1 + max((int(path.name.removeprefix("attempt-")) for path in attempts(folder)), default=0)
    hidden = folder / f".attempt-{number}"
    try:
        left = [path for pattern in RECORDS for path in folder.glob(pattern)]
        if not left and not hidden.exists():
            return  # this was done before, and the attempt after it never began
        hidden.mkdir(exist_ok=True)
        for path in left:
            path.rename(hidden / path.name)
        shutil.copy(folder / NAME, hidden / NAME)
        hidden.rename(folder / f"attempt-{number}")
        prune(folder)
    except OSError as error:
        raise cannot_write(folder, error) from error


def attempts(folder: Path) -> list[Path]:
    """Return the folders of the attempts before the last, in order."""
    earlier = [path for path in folder.glob("attempt-*") if ATTEMPT.fullmatch(path.name)]
    return sorted(earlier, key=lambda path: int(path.name.removeprefix("attempt-")))
