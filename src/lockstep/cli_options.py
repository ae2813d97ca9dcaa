"""Options that several commands share. Nothing here imports torch."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from lockstep.recipe import BUILT_IN

if TYPE_CHECKING:
    from lockstep.train.spec import RunSpec


class Device(StrEnum):
    """What to compute on."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"
    xpu = "xpu"
    mps = "mps"


Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads per worker.", show_default="CPUs // workers")]
Out = Annotated[Path | None, typer.Option(help="Folder to make for the results.", show_default="runs/...")]
LAUNCHERS, STRATEGIES, PEERS = "{launchers}", "{strategies}", "{peers}"
"""In a help text: the names in a registry, put in by `ListingCommand`."""
Launcher = Annotated[str, typer.Option(help=f"{LAUNCHERS}.")]
LauncherFound = Annotated[str | None, typer.Option(help=f"{LAUNCHERS}.", show_default="who started this, or spawn")]
"""Of a command that may itself have been started by a launcher."""


class ListingCommand(TyperCommand):
    """A command whose help lists what there is to choose from; that is looked up when the help is asked for."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Put the names into the help texts of the options."""
        from lockstep import registry

        names = {
            LAUNCHERS: registry.LAUNCHERS.names(),
            STRATEGIES: [*registry.STRATEGIES.names(), *registry.PEERS.names()],
            PEERS: registry.PEERS.names(),
        }
        for parameter in self.params:
            for marker, known in names.items():
                if marker in (getattr(parameter, "help", None) or ""):
                    parameter.help = parameter.help.replace(marker, listed(known))  # type: ignore[attr-defined]
        super().format_help(ctx, formatter)


def listed(names: Sequence[str]) -> str:
    """Return names as a reader expects them: `a, b or c`."""
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


@dataclass(frozen=True, kw_only=True)
class RecipeOptions:
    """What is trained, however many ways: the options that every command that trains has."""

    recipe: Annotated[str, typer.Argument(help=f"file.py, file.py:function, {listed(BUILT_IN)}.")] = "cifar100"
    lanes: Annotated[
        int | None, typer.Option(help="Fixed slices of the global batch; more lanes than workers is accumulation.")
    ] = None
    threads: Threads = None
    steps: Annotated[int | None, typer.Option(help="Stop after so many steps.")] = None
    epochs: Annotated[int | None, typer.Option(help="Passes over the data.", show_default="the recipe's")] = None
    global_batch: Annotated[int | None, typer.Option(help="Samples per step over all workers.")] = None
    seed: Annotated[int | None, typer.Option(help="Of weights, order and dropout.")] = None
    data: Annotated[
        Path | None,
        typer.Option(help="Data for the recipe, e.g. the CIFAR-100 archive.", show_default="made up in memory"),
    ] = None
    device: Annotated[Device, typer.Option(help="What to compute on.")] = Device.auto
    sync_batchnorm: Annotated[
        bool, typer.Option("--sync-batchnorm", help="BatchNorm over all workers; results then depend on their number.")
    ] = False
    no_measure: Annotated[
        bool, typer.Option("--no-measure", help="Note only time and loss: no parts, no fingerprints.")
    ] = False

    @property
    def stem(self) -> str:
        """The recipe's name, for folders and titles."""
        return Path(self.recipe.partition(":")[0]).stem

    def spec(self, **fields: Any) -> RunSpec:
        """Return the order of a run; `fields` are what the command decides."""
        from lockstep.train.spec import RunSpec

        asked = {
            "recipe": _reference(self.recipe),
            "lanes": self.lanes,
            "threads": self.threads,
            "steps": self.steps,
            "epochs": self.epochs,
            "global_batch": self.global_batch,
            "seed": self.seed,
            "data": str(self.data.absolute()) if self.data else None,
            "device": self.device.value,
            "sync_batchnorm": self.sync_batchnorm,
            "measure": not self.no_measure,
        }
        return RunSpec(**{**asked, **fields})


def with_recipe_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the fields of RecipeOptions as options of its own; it gets them as its first argument."""
    shared = inspect.signature(RecipeOptions, eval_str=True).parameters
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

    @functools.wraps(command)
    def call(**values: Any) -> None:
        asked = RecipeOptions(**{name: values.pop(name) for name in shared})
        command(asked, **values)

    # typer reads a command's options off its signature and annotations
    every = [*(one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in [*shared.values(), *own])]
    call.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
    call.__annotations__ = {one.name: one.annotation for one in every}
    del call.__wrapped__
    return call


def _reference(recipe: str) -> str:
    """Make a recipe file's path absolute: ranks may start in another folder."""
    path, colon, function = recipe.partition(":")
    return f"{Path(path).absolute()}{colon}{function}" if path.endswith(".py") or "/" in path else recipe
