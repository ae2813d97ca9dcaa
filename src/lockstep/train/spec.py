"""RunSpec: one run as asked for, the same value in every process of it."""

from __future__ import annotations

import hashlib
import platform
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from lockstep.errors import BadInput
from lockstep.recipe import Plan, Recipe, load, plan
from lockstep.train.records import read_json, write_json
from lockstep.version import __version__
from lockstep.world.resources import usable_cpus


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """What to run; None means: as the recipe, or the machine, says."""

    recipe: str
    """`file.py`, `file.py:function` or a built-in name."""
    strategy: str = "single"
    """Which strategy."""
    workers: int = 1
    """How many workers."""
    launcher: str = "inline"
    """Who starts them."""
    lanes: int | None = None
    """Slices of the global batch."""
    threads: int | None = None
    """Threads per worker."""
    device: str = "auto"
    """`auto`, `cpu`, or an accelerator's kind."""
    backend: str | None = None
    """The torch.distributed backend."""
    steps: int | None = None
    """Stop after so many steps."""
    most_steps: int | None = None
    """Stop after so many steps if the recipe has more."""
    epochs: int | None = None
    """Passes over the data."""
    global_batch: int | None = None
    """Samples per step over all workers."""
    seed: int | None = None
    """Of weights, order and dropout."""
    sync_batchnorm: bool = False
    """Whether BatchNorm takes its statistics over all workers."""
    exact: bool = True
    """Whether gradients are added up in the tree over lanes, so that the bits do not depend on the workers."""
    data: str | None = None
    """A path that the recipe's function gets."""
    measure: bool = True
    """Whether steps are divided into parts and the weights are fingerprinted; False: only time and loss."""
    progress: bool = True
    """Whether rank 0 shows how far it is."""
    checkpoint_every: int | None = None
    """Write a checkpoint after every so many steps, and after the last; None: none at all."""
    most_weights: int | None = None
    """Final weights of more bytes are not written; None: they are, whatever their size."""
    resume: bool = False
    """Whether to go on from the run folder's last good checkpoint."""

    def load(self) -> Recipe:
        """Load the recipe with this run's changes applied."""
        changes = {name: getattr(self, name) for name in ("lanes", "epochs", "global_batch", "seed")}
        return load(self.recipe, self.data).override(**changes)

    def plan(self, recipe: Recipe, samples: int) -> Plan:
        """Check the recipe against this run's workers."""
        found = plan(recipe, workers=self.workers, samples=samples, steps=self.steps)
        return found if self.most_steps is None else replace(found, steps=min(found.steps, self.most_steps))


def write_spec(
    folder: Path, spec: RunSpec, recipe: Recipe, steps: Plan, resumed: Sequence[Mapping[str, Any]] = ()
) -> None:
    """Write run.json; `resumed` tells at which checkpoints the run went on."""
    write_json(
        folder / "run.json",
        {
            "spec": asdict(spec),
            "recipe": {
                "name": recipe.name,
                "global_batch": recipe.global_batch,
                "epochs": recipe.epochs,
                "seed": recipe.seed,
                "source": source_of(spec.recipe),
            },
            "plan": asdict(steps),
            "versions": versions(),
            "host": socket.gethostname(),
            "cpu": cpu_model(),
            "cpus": usable_cpus(),
            "created": time.time(),
            **({"resumed": list(resumed)} if resumed else {}),
        },
    )


def read_spec(folder: Path) -> RunSpec:
    """Read the order back from run.json."""
    found = read_json(folder / "run.json").get("spec")
    known = {field.name for field in fields(RunSpec)}
    if not isinstance(found, dict) or set(found) != known:
        raise BadInput(f"{folder / 'run.json'} has no readable spec: it was written by another version")
    return RunSpec(**found)


def versions() -> dict[str, Any]:
    """Return what has to be the same for the same bits."""
    return {
        "lockstep": __version__,
        "torch": _version("torch"),
        "numpy": _version("numpy"),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "implementation": sys.implementation.name,
    }


def source_of(recipe: str) -> str:
    """Return the SHA-256 of a recipe's file; empty for a built-in one, which belongs to the version."""
    path = Path(recipe.partition(":")[0])
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.suffix == ".py" and path.is_file() else ""


def cpu_model() -> str:
    """Return what this host computes with, as its maker calls it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
