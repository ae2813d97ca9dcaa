"""Hosts that differ in what decides the result are noticed before the first step: versions, recipe, folder, clocks.

What would train something else is refused (other versions of torch, lockstep or Python, another recipe file), and so is
a run folder that is not shared: its records would end up apart. Clocks that differ are only said, by rank 0.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.comm.broadcast import all_gather_text
from lockstep.comm.group import Group
from lockstep.errors import BadInput
from lockstep.train.schema.run_json import NAME
from lockstep.train.spec import source_of
from lockstep.version import __version__

if TYPE_CHECKING:
    from lockstep.train.spec import RunSpec
    from lockstep.world.place import World

CLOCK_SECONDS = 1.0
"""By how much clocks may differ: records of steps are far apart then."""
VISIBLE_SECONDS = 5.0
"""How long a network file system may take to show a file that another host wrote."""
Traits = Mapping[str, Any]
"""What a rank says of its host."""


def check_hosts(spec: RunSpec, world: World, folder: Path) -> None:
    """Refuse hosts that would train differently, and say what else differs; all ranks call this together."""
    if world.nodes == 1:
        return
    import torch

    group = Group.everyone(world.device)
    traits: dict[str, Any] = {
        "host": world.host,
        "the version of torch": torch.__version__,
        "the version of lockstep": __version__,
        "the version of Python": ".".join(platform.python_version_tuple()[:2]),
        "the recipe file": source_of(spec.recipe)[:12],
        "setup": _setup(folder, wait=world.rank != 0),
    }
    group.barrier()
    traits["time"] = time.time()
    every = [json.loads(text) for text in all_gather_text(json.dumps(traits), group)]
    if refusal := refused(every) or apart(every, folder):
        raise BadInput(refusal)
    if world.rank == 0:
        for line in remarks(every):
            print(f"lockstep: {line}", file=sys.stderr, flush=True)  # noqa: T201


def refused(ranks: Sequence[Traits]) -> str:
    """Return why these hosts cannot train one model together; empty if they can. Pure."""
    first = ranks[0]
    for name in first:
        if not name.startswith("the "):
            continue
        for rank, other in enumerate(ranks):
            if other[name] != first[name]:
                return (
                    f"{name} differs between hosts: {first[name] or 'absent'} for rank 0 on {first['host']}, "
                    f"{other[name] or 'absent'} for rank {rank} on {other['host']}. All hosts need the same"
                )
    return ""


def apart(ranks: Sequence[Traits], folder: Path) -> str:
    """Say which ranks have a run folder of their own; empty if all share one. Pure."""
    others = [rank for rank, other in enumerate(ranks) if other["setup"] != ranks[0]["setup"]]
    if not others:
        return ""
    return (
        f"the run folder {folder} is not shared: rank {others[0]} on {ranks[others[0]]['host']} has one of its own, so "
        f"the records of rank {', '.join(map(str, others))} would be missing. Choose one with --out on a file system "
        "that all hosts share"
    )


def remarks(ranks: Sequence[Traits]) -> list[str]:
    """Return what a reader of this run's records has to know. Pure."""
    first, said = ranks[0], []
    rank = max(range(len(ranks)), key=lambda one: abs(ranks[one]["time"] - first["time"]))
    difference = ranks[rank]["time"] - first["time"]
    if abs(difference) > CLOCK_SECONDS:
        said.append(
            f"the clock of {ranks[rank]['host']} (rank {rank}) is {abs(difference):.1f} s "
            f"{'ahead of' if difference > 0 else 'behind'} that of {first['host']} (rank 0): times of different hosts "
            "in reports do not fit together. Have both set by NTP"
        )
    return said


def _setup(folder: Path, *, wait: bool) -> str:
    """Return the contents of the run's setup as this host sees it; empty if it does not."""
    deadline = time.monotonic() + (VISIBLE_SECONDS if wait else 0.0)
    while True:
        try:
            return (folder / NAME).read_text(errors="replace")
        except OSError:
            if time.monotonic() >= deadline:
                return ""
            time.sleep(0.1)
