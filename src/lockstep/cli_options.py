"""Options that several commands share. Nothing here imports torch."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

from lockstep.cli_help import example_lines
from lockstep.errors import BadInput
from lockstep.recipe_file import BUILT_IN
from lockstep.registry.base import Description
from lockstep.settings import Option, option_of
from lockstep.train.spec import DEFAULT_RECIPE, RunSpec
from lockstep.train.spec import stem as stem

Nodes = Annotated[int | None, typer.Option(help="srun: over how many nodes.")]
LauncherArgs = Annotated[str, typer.Option(help='More arguments for srun or mpirun, e.g. "--partition=ml".')]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Out = Annotated[Path | None, typer.Option(help="Folder to make for the results.", show_default="runs/...")]
LAUNCHERS, STRATEGIES, PEERS = "{launchers}", "{strategies}", "{peers}"
"""In a help text: the names in a registry, put in by `ListingCommand`."""
Launcher = Annotated[str, typer.Option(help=f"{LAUNCHERS}.")]


def listing_names() -> dict[str, list[str]]:
    """Return what the markers in a help text stand for."""
    from lockstep import registry

    return {
        LAUNCHERS: registry.LAUNCHERS.names(),
        STRATEGIES: [*registry.STRATEGIES.names(), *registry.PEERS.names()],
        PEERS: registry.PEERS.names(),
    }


class ListingCommand(TyperCommand):
    """A command whose help lists what there is to choose from; that is looked up when the help is asked for."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Put the names into the help texts of the options."""
        from lockstep import registry

        names = listing_names()
        every: dict[str, tuple[str, Sequence[Description]]] = {
            LAUNCHERS: ("Launchers", registry.LAUNCHERS.all()),
            STRATEGIES: ("Strategies", [*registry.STRATEGIES.all(), *registry.PEERS.all()]),
        }
        asked: dict[str, Sequence[Description]] = {}
        for parameter in self.get_params(ctx):
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""  # else it shows <bool>, and a flag takes no value
            for marker, known in names.items():
                if marker in (getattr(parameter, "help", None) or ""):
                    if marker in every:
                        title, asked[title] = every[marker]
                    parameter.help = parameter.help.replace(marker, listed(known))  # type: ignore[attr-defined]
        super().format_help(ctx, formatter)
        for title, descriptions in asked.items():
            formatter.write(described_lines(title, descriptions))
        formatter.write(example_lines(ctx.info_name))


def described_lines(title: str, descriptions: Sequence[Description]) -> str:
    """Return a line for each thing to choose from: its name and what it is."""
    width = max(len(one.name) for one in descriptions)
    return "".join([f"{title}:\n", *(f"  {one.name:<{width}}  {one.help}\n" for one in descriptions), "\n"])


def listed(names: Sequence[str]) -> str:
    """Return names as a reader expects them: `a, b or c`."""
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


Given = dict[str, Any]
"""The fields of RunSpec that were typed, by name; what is not in it is left to the command, recipe or machine."""


FIRST = ("recipe", "strategy", "strategies", "workers", "lanes", "steps", "epochs", "global_batch", "repeats")
"""What nearly everybody types: the help of a command begins with these."""


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the fields of RunSpec as options of its own; it gets those that were typed as its first argument.

    A parameter of the command itself takes the place of the field of that name.
    """
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    taken = {parameter.name for parameter in own}
    shared = [one for one in setting_parameters(RunSpec, command.__name__) if one.name not in taken]

    @functools.wraps(command)
    def call(**values: Any) -> None:
        given = {one.name: values.pop(one.name) for one in shared}
        command({name: _plain(name, value) for name, value in given.items() if value is not None}, **values)

    # typer reads a command's options off its signature and annotations
    every = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in [*shared, *own]]
    every.sort(key=lambda one: FIRST.index(one.name) if one.name in FIRST else len(FIRST))
    call.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
    call.__annotations__ = {one.name: one.annotation for one in every}
    del call.__wrapped__
    return call


def setting_parameters(spec: type[RunSpec], command: str) -> list[inspect.Parameter]:
    """Return the parameters of a command that are fields of a spec: the recipe, and what has an `Option`."""
    hints = get_type_hints(spec, include_extras=True)
    parameters = [_parameter("recipe", str, _RECIPE)]
    for field in fields(spec):
        option = option_of(hints[field.name])
        if option is not None and option.only in ("", command):
            kind = option.reads or hints[field.name].__origin__
            parameters.append(_parameter(field.name, kind, _as_typer(field.name, kind, option, field.default)))
    return parameters


_RECIPE = typer.Argument(help=f"file.py, file.py:function, {listed(BUILT_IN)}.", show_default=DEFAULT_RECIPE)


_DEFAULTS = {field.name: field.default for field in fields(RunSpec)}


def _parameter(name: str, kind: Any, asked: Any) -> inspect.Parameter:
    """Return a parameter that is None where it is not typed."""
    annotation = Annotated[kind | None, asked]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _as_typer(name: str, kind: Any, option: Option, default: Any) -> Any:
    if kind is bool:
        return typer.Option(option.off or f"--{name.replace('_', '-')}", help=option.help)
    shown = option.default or (False if default is None else str(default))
    return typer.Option(help=option.help, min=option.least, show_default=shown)


Threads = Annotated[
    str | None, _as_typer("threads", str, option_of(get_type_hints(RunSpec, include_extras=True)["threads"]), None)
]


def _plain(name: str, value: Any) -> Any:
    """Return what was typed as the field holds it: paths are absolute, because ranks may start in another folder."""
    if name == "recipe":
        path, colon, function = value.partition(":")
        return f"{Path(path).absolute()}{colon}{function}" if path.endswith(".py") or "/" in path else value
    if isinstance(value, Path):
        return str(value.absolute())
    if isinstance(value, bool):
        return not _DEFAULTS[name]  # a flag turns a field that is true off, and one that is false on
    return value.value if isinstance(value, Enum) else value


def with_threads(given: Given, local_size: int) -> Given:
    """Return the fields with the number of threads that `--threads` means where so many workers share a host."""
    from lockstep.world.resources import read_threads, usable_cpus

    if "threads" not in given:
        return given
    return {**given, "threads": read_threads(given["threads"], usable_cpus(), local_size)}


def numbers(option: str, text: str) -> list[int]:
    """Return the numbers of an option that takes several, ascending."""
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        raise BadInput(f"{option} {text}: numbers separated by commas are needed, e.g. 2 or 1,2,4") from None
    if min(counts) < 1:
        raise BadInput(f"{option} {text}: at least 1 is needed")
    return sorted(set(counts))
