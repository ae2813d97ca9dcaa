"""run.json as it is written: what was asked for, and where."""

from __future__ import annotations

import platform
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import msgspec

from lockstep.errors import BadInput
from lockstep.recipe import Plan, Recipe
from lockstep.train.records import write_document
from lockstep.train.schema.refusal import validation_words
from lockstep.train.schema.run_json import NAME, RecipeFacts, Resumption, Setup, StepCount, wrong_count
from lockstep.train.spec import RunSpec, source_of, versions
from lockstep.world.resources import usable_cpus


def write_setup(folder: Path, spec: RunSpec, recipe: Recipe, plan: Plan, resumed: Sequence[Resumption] = ()) -> None:
    """Write run.json; `resumed` tells at which checkpoints the run was resumed."""
    setup = Setup(
        spec=spec,
        recipe=RecipeFacts(
            name=recipe.name,
            global_batch=recipe.global_batch,
            epochs=recipe.epochs,
            seed=recipe.seed,
            source=source_of(spec.recipe),
        ),
        plan=StepCount(**asdict(plan)),
        versions=versions(),
        host=socket.gethostname(),
        cpu=cpu_model(),
        cpus=usable_cpus(),
        created=time.time(),
        resumed=tuple(resumed),
    )
    if wrong := wrong_count(spec):
        raise BadInput(f"these settings cannot be used: {wrong}")
    try:
        write_document(folder / NAME, setup)
    except msgspec.ValidationError as error:
        raise BadInput(f"these settings cannot be recorded: {validation_words(str(error), b'')}") from error


def cpu_model() -> str:
    """Return what this host computes with, as its maker calls it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()
