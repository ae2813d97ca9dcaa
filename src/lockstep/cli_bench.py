"""`lockstep bench`: a command for each benchmark, made from what it says of itself. Nothing here imports torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from lockstep.cli_options import Json
from lockstep.errors import BadInput

if TYPE_CHECKING:
    from lockstep.bench.contract import Benchmark, BenchOption, Result

Quick = Annotated[
    bool, typer.Option("--quick", help="A minimal run that only shows that it works: its numbers mean nothing.")
]
Save = Annotated[Path | None, typer.Option(help="Write the result to this file too, as JSON.", metavar="FILE")]


class Benchmarks(TyperGroup):
    """The commands, looked up when `lockstep bench` is called and not before."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names."""
        from lockstep.bench.contract.registry import BENCHMARKS

        return BENCHMARKS.names()

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the one of that name; refuse an unknown name."""
        from lockstep.bench.contract.registry import BENCHMARKS

        return command(BENCHMARKS.get(cmd_name))


bench = typer.Typer(
    cls=Benchmarks, help="The benchmarks: ours beside the stock parts, from one interleaved run.", no_args_is_help=True
)


def command(benchmark: Benchmark) -> Any:
    """Return the command of a benchmark; a command is made from the signature of a function."""
    call = _function(benchmark)
    call.__signature__ = inspect.Signature(_parameters(benchmark))  # type: ignore[attr-defined]
    call.__annotations__ = {one.name: one.annotation for one in _parameters(benchmark)}
    alone = typer.Typer(add_completion=False)
    alone.command(benchmark.name, help=f"{benchmark.help}.")(call)
    return typer.main.get_command(alone)


def _function(benchmark: Benchmark) -> Callable[..., None]:
    def call(*, quick: bool, json: bool, save: Path | None, **typed: Any) -> None:
        from lockstep.bench.contract import measure, settings

        given = {}
        for option in benchmark.options:
            value = typed[_identifier(option)]
            given[option.name] = option.read(value) if isinstance(value, str) else value
        if save is not None and not save.absolute().parent.is_dir():
            raise BadInput(f"--save {save}: there is no folder {save.parent}")
        chosen = settings(benchmark.options, given, quick=quick)
        result = measure(benchmark, chosen, tell=lambda text: _tell(benchmark, f"{text} ..."))
        _show(result, json=json, save=save)

    return call


def _parameters(benchmark: Benchmark) -> list[inspect.Parameter]:
    own = [_parameter(_identifier(option), _annotation(option), None) for option in benchmark.options]
    return [
        *own,
        _parameter("quick", Quick, False),
        _parameter("save", Save, None),
        _parameter("json", Json, False),
    ]


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _identifier(option: BenchOption[Any]) -> str:
    return option.name.replace("-", "_")


def _annotation(option: BenchOption[Any]) -> Any:
    """Return the type of an option for typer; what was not typed is None, because `--quick` decides it then."""
    shown = f"{option.write(option.default)}; quick: {option.write(option.quick)}"
    several = isinstance(option.default, tuple)
    words = f" Of: {', '.join(option.choices)}." if option.choices else ""
    return Annotated[
        str | None,
        typer.Option(
            option.flag, help=option.help + words, show_default=shown, metavar="LIST" if several else "INTEGER"
        ),
    ]


def _show(result: Result, *, json: bool, save: Path | None) -> None:
    from lockstep.bench.contract import encode
    from lockstep.report.units import duration

    if save is not None:
        save.write_text(encode(result) + "\n")
    if json:
        typer.echo(encode(result))
    else:
        from lockstep.bench.contract.console_tables import show
        from lockstep.report.render import console

        show(result, console())
    typer.echo(f"{result.benchmark}: took {duration(result.seconds)}", err=True)


def _tell(benchmark: Benchmark, text: str) -> None:
    typer.echo(f"{benchmark.name}: {text}", err=True)
