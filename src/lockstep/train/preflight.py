"""The check before any worker starts: load the recipe, count its steps, make the run folder."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from lockstep.data.source import count_samples, open_source
from lockstep.errors import BadInput
from lockstep.strategies import PEERS, check_name
from lockstep.train.records import CannotWrite, create_folder
from lockstep.train.spec import RunSpec, write_spec

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.recipe import Plan


def preflight(spec: RunSpec, out: Path) -> None:
    """Refuse what cannot run, then make the run folder with its order in it."""
    check_name(spec.strategy)
    recipe = spec.load()
    data = recipe.dataset()
    plan = spec.plan(recipe, count_samples(data))
    if spec.strategy in PEERS:
        _check_peer(spec, plan, stream=open_source(data).stream)
    create_folder(out)
    try:
        write_spec(out, spec, recipe, plan)
    except CannotWrite as error:
        if not any(out.iterdir()):
            out.rmdir()
        raise BadInput(str(error)) from error


def _check_peer(spec: RunSpec, plan: Plan, *, stream: bool) -> None:
    """Refuse a peer that is not there, and what it has no counterpart of."""
    if find_spec(spec.strategy) is None:
        raise BadInput(
            f"strategy {spec.strategy} needs the package of that name, which is not installed: "
            "pip install 'lockstep-train[peers]'"
        )
    if plan.lanes % spec.workers:
        raise BadInput(
            f"strategy {spec.strategy} gives every rank as many batches, and lanes={plan.lanes} cannot be cut evenly "
            f"over {spec.workers} workers: use --lanes {plan.lanes - plan.lanes % spec.workers + spec.workers}"
        )
    if spec.sync_batchnorm:
        raise BadInput(f"--sync-batchnorm: strategy {spec.strategy} has no SyncBatchNorm on the CPU; use ddp")
    if stream:
        raise BadInput(f"strategy {spec.strategy} shuffles over its ranks, and this data is a stream: use ddp")
