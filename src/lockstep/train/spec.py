"""RunSpec: one run as asked for, the same value in every process of it."""

from __future__ import annotations

import hashlib
import platform
import sys
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

from lockstep.recipe import Plan, Recipe, plan
from lockstep.recipe_file import load
from lockstep.registry import BASELINE, DEFAULT
from lockstep.settings import Option, Settings
from lockstep.version import __version__

DEFAULT_RECIPE = "cifar100"
"""What is trained where nothing is asked for."""


@dataclass(frozen=True, kw_only=True)
class RunSpec(Settings):
    """A run: its settings, and what only the built-in loop heeds; None means: as the recipe, or the machine, says."""

    recipe: str
    """`file.py`, `file.py:function` or a built-in name."""
    launcher: Annotated[str, Option(help="{launchers}.", default="who started this, or spawn", only="run")] = "inline"
    threads: Annotated[
        int | None,
        Option(
            help="Threads per worker, or `all`: the CPUs, shared out over a host's workers.",
            default="OMP_NUM_THREADS, else 1",
            reads=str,
            bits=True,
        ),
    ] = None
    default_lanes: int | None = None
    """Lanes if neither the run nor the recipe sets them; None: as many as workers."""
    device: Annotated[
        str, Option(help="What to compute on: auto, cpu, or a kind that torch knows: cuda, xpu, cuda:1, ...", bits=True)
    ] = "auto"
    backend: Annotated[str | None, Option(help="torch.distributed backend.", only="run")] = None
    steps: Annotated[int | None, Option(help="Stop after so many steps.", bits=True)] = None
    most_steps: int | None = None
    """Stop after so many steps if the recipe has more."""
    epochs: Annotated[int | None, Option(help="Passes over the data.", default="the recipe's")] = None
    global_batch: Annotated[
        int | None, Option(help="Samples per step over all workers.", default="the recipe's", bits=True)
    ] = None
    drop_last: Annotated[bool, Option(help="Leave out a short last batch of an epoch.", bits=True)] = False
    data: Annotated[
        str | None,
        Option(
            help="Data for the recipe, e.g. the CIFAR-100 archive.", default="made up in memory", reads=Path, bits=True
        ),
    ] = None
    progress: bool = True
    """Whether rank 0 shows how far it is."""
    checkpoint_every: Annotated[
        int | None, Option(help="Write a checkpoint after every so many steps, and after the last.", only="run")
    ] = None
    eval_every: Annotated[
        int | None,
        Option(help="Evaluate after every so many steps, and after the last.", default="every epoch", only="run"),
    ] = None
    keep_best: Annotated[
        str | None,
        Option(help="Write best.safetensors when this metric is the best so far: accuracy, loss:min, ...", only="run"),
    ] = None
    patience: Annotated[
        int | None,
        Option(help="Stop after so many evaluations in which the metric of --keep-best did not improve.", only="run"),
    ] = None
    stall_limit: Annotated[
        float | None,
        Option(help="End the run if no rank moves for so many seconds.", default="only say so", only="run"),
    ] = None
    tensorboard: Annotated[
        bool, Option(help="Write TensorBoard event files while it trains; needs the extra tensorboard.", only="run")
    ] = False
    monitored: bool = False
    """Whether somebody follows the run: it evaluates after every epoch, and calls back. A comparison does neither."""
    predicted_memory: int | None = None
    """Bytes that the largest worker is predicted to need; None: nobody predicted it. A comparison does."""
    most_weights: int | None = None
    """Final weights of more bytes are not written; None: they are, whatever their size."""
    stoppable: bool = False
    """Whether a signal stops the run at a step's end: in a job with a time limit, or with `--continue`."""
    resume: bool = False
    """Whether to go on from the run folder's last good checkpoint."""

    def load(self) -> Recipe:
        """Load the recipe with this run's changes applied."""
        changes = {name: getattr(self, name) for name in ("epochs", "global_batch", "seed")}
        recipe = load(self.recipe, self.data).override(**changes, drop_last=self.drop_last or None)
        if self.epochs is not None:
            recipe = replace(recipe, steps=None)
        default = self.default_lanes if recipe.lanes is None else None
        return recipe.override(lanes=default if self.lanes is None else self.lanes)

    def plan(self, recipe: Recipe, data: Any) -> Plan:
        """Check the recipe and its training data against this run's workers."""
        from lockstep.data.source import open_source

        source = open_source(data, recipe.collate, recipe.global_batch)
        endless = source.samples is None and recipe.steps is None
        steps = self.most_steps if self.steps is None and endless else self.steps
        recipe = recipe.override(drop_last=source.drop_last or None)
        asked = plan(recipe, workers=self.workers, replicas=self.replicas, samples=source.samples, steps=steps)
        return asked if self.most_steps is None else replace(asked, steps=min(asked.steps, self.most_steps))

    def filled_in(self, recipe: Recipe, plan: Plan) -> RunSpec:
        """Return the spec with what the recipe decided where nothing was asked for."""
        return replace(self, lanes=plan.lanes, seed=recipe.seed)


def new_spec(given: dict[str, Any]) -> RunSpec:
    """Return the spec of a new run: the fields that were asked for, and what follows from the number of workers."""
    alone = given.get("workers", 1) == 1
    strategy, launcher = (BASELINE, "inline") if alone else (DEFAULT, "spawn")
    return RunSpec(**{"recipe": DEFAULT_RECIPE, "strategy": strategy, "launcher": launcher, **given})


def stem(recipe: str) -> str:
    """Return a recipe's name, for folders and titles."""
    return Path(recipe.partition(":")[0]).stem


def versions() -> dict[str, str | None]:
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
    """Return the SHA-256 of a recipe's file; empty for a built-in one, which belongs to the version, or no file."""
    path = Path(recipe.partition(":")[0])
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.suffix == ".py" and path.is_file() else ""
    except (OSError, ValueError):  # a name that no file can have
        return ""


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
