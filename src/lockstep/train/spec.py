"""RunSpec: one run as asked for, the same value in every process of it."""

from __future__ import annotations

import hashlib
import platform
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

from lockstep.errors import BadInput
from lockstep.recipe import Plan, Recipe, load, plan
from lockstep.settings import Option, Settings
from lockstep.train.records import read_json, write_json
from lockstep.version import __version__
from lockstep.world.resources import usable_cpus

DEFAULT_RECIPE = "cifar100"
"""What is trained where nothing is asked for."""


class Device(StrEnum):
    """What to compute on."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"
    xpu = "xpu"
    mps = "mps"


@dataclass(frozen=True, kw_only=True)
class RunSpec(Settings):
    """A run: its settings, and what only the built-in loop heeds; None means: as the recipe, or the machine, says."""

    recipe: str
    """`file.py`, `file.py:function` or a built-in name."""
    launcher: Annotated[str, Option(help="{launchers}.", default="who started this, or spawn", only="run")] = "inline"
    threads: Annotated[int | None, Option(help="Threads per worker.", default="CPUs // workers", least=1)] = None
    device: Annotated[str, Option(help="What to compute on.", reads=Device)] = "auto"
    backend: Annotated[str | None, Option(help="torch.distributed backend.", only="run")] = None
    steps: Annotated[int | None, Option(help="Stop after so many steps.")] = None
    most_steps: int | None = None
    """Stop after so many steps if the recipe has more."""
    epochs: Annotated[int | None, Option(help="Passes over the data.", default="the recipe's")] = None
    global_batch: Annotated[int | None, Option(help="Samples per step over all workers.", default="the recipe's")] = (
        None
    )
    data: Annotated[
        str | None,
        Option(help="Data for the recipe, e.g. the CIFAR-100 archive.", default="made up in memory", reads=Path),
    ] = None
    progress: bool = True
    """Whether rank 0 shows how far it is."""
    checkpoint_every: Annotated[
        int | None, Option(help="Write a checkpoint after every so many steps, and after the last.", only="run")
    ] = None
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
        asked = plan(recipe, workers=self.workers, samples=samples, steps=self.steps)
        return asked if self.most_steps is None else replace(asked, steps=min(asked.steps, self.most_steps))

    def filled_in(self, recipe: Recipe, plan: Plan) -> RunSpec:
        """Return the spec with what the recipe decided where nothing was asked for."""
        return replace(self, lanes=plan.lanes, seed=recipe.seed)


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
