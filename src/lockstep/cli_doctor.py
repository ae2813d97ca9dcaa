"""`lockstep doctor` and `lockstep selftest`: what would be used here, and whether the promises hold here."""

from __future__ import annotations

import json as jsonlib
from dataclasses import asdict
from typing import Annotated

import typer

from lockstep.cli_options import Json

Device = Annotated[str, typer.Option(help="As for run: auto, cpu, or a kind of device that torch knows.")]


def doctor(
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Show what would be used here, and which variables made it so, before any collective runs."""
    from lockstep.doctor import examine

    examination = examine(device_asked=device)
    if json:
        typer.echo(jsonlib.dumps(examination, indent=1))
        return
    for name, value in examination.items():
        label = name.replace("_", " ")
        if isinstance(value, dict):
            typer.echo(f"{label}:")
            for key, entry in value.items():
                typer.echo(f"    {key}: {entry}")
        elif isinstance(value, list):
            for entry in value or ["none"]:
                typer.echo(f"{label}: {entry}")
        else:
            typer.echo(f"{label}: {value}")


def selftest(
    device: Device = "auto",
    workers: Annotated[int, typer.Option(help="How many workers to try.", min=2, max=4)] = 2,
    json: Json = False,
) -> None:
    """Run the promises on this machine: bits over workers and strategies, memory, overlap, in about two minutes."""
    from lockstep.selftest import as_table, checks, facts

    about = facts(device)
    outcomes = list(checks(device, workers, lambda text: typer.echo(f"lockstep: selftest: {text}", err=True)))
    if json:
        rows = [asdict(one) for one in outcomes]
        typer.echo(jsonlib.dumps({"about": about, "checks": rows}, indent=1))
    else:
        typer.echo(as_table(outcomes, about))
    if any(one.holds is False for one in outcomes):
        raise typer.Exit(1)
