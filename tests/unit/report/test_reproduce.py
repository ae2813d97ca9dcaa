"""The one command that gives a run's digest again."""

from __future__ import annotations

import shlex
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest

from lockstep.report.collect import FinishedRun
from lockstep.report.reproduce import reproduce, with_digest
from lockstep.settings import option_of
from lockstep.train.spec import RunSpec
from tests.unit.report.causes import run

HERE = Path("/home/somebody")
TRAINING = {
    "lanes",
    "seed",
    "sync_batchnorm",
    "exact",
    "threads",
    "device",
    "steps",
    "global_batch",
    "drop_last",
    "data",
}
"""Options that the bits of an exact run depend on; the epochs, and where patience ended, are in the number of steps."""


def asked(made: FinishedRun, **changes: Any) -> FinishedRun:
    setup = msgspec.structs.replace(made.setup, spec=replace(made.setup.spec, **changes))
    return replace(made, setup=setup)


def test_everything_is_typed() -> None:
    made = asked(run("ddp", 2, lanes=4, same_bits_up_to=4, threads=1), recipe="mlp")
    assert reproduce(made, HERE) == (
        "lockstep run mlp --lanes 4 --seed 0 --threads 1 --device cpu --steps 5 --global-batch 64"
    )
    assert with_digest("lockstep run mlp", "0c479363" + "0" * 56) == "lockstep run mlp  ->  0c479363"


def test_flags_paths_and_accelerators() -> None:
    made = run("single", lanes=1, same_bits_up_to=0, threads=2, device="cuda:1")
    recipe, data = "/home/somebody/my work/train.py:small", "/data/images"
    made = asked(made, recipe=recipe, exact=False, sync_batchnorm=True, drop_last=True, data=data)
    options = "--lanes 1 --seed 0 --sync-batchnorm --inexact --threads 2 --device cuda --steps 5 --global-batch 64"
    assert reproduce(made, HERE) == (
        f"lockstep run 'my work/train.py:small' --strategy single --workers 1 {options} --drop-last --data /data/images"
    )


@pytest.mark.parametrize("recipe", ["/elsewhere/train.py", "mlp"])
def test_a_recipe_that_is_not_below_the_folder(recipe: str) -> None:
    assert shlex.split(reproduce(asked(run(same_bits_up_to=2), recipe=recipe), HERE))[2] == recipe


def test_what_the_bits_depend_on_is_marked() -> None:
    hints = get_type_hints(RunSpec, include_extras=True)
    options = {field.name: option_of(hints[field.name]) for field in fields(RunSpec)}
    assert {name for name, option in options.items() if option and option.bits} == TRAINING
