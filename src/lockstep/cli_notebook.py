"""`lockstep notebook kernel`: this environment as a kernel of Jupyter. No torch."""

from __future__ import annotations

import json as jsonlib
from typing import Annotated

import typer

from lockstep.cli_options import Json, ListingCommand

notebook = typer.Typer(
    help="Notebooks: register this environment as a kernel.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@notebook.callback()
def _notebook() -> None:
    """Notebooks: register this environment as a kernel. In a cell: lockstep.notebook.run and compare."""


@notebook.command(cls=ListingCommand)
def kernel(
    name: Annotated[str, typer.Option(help="Of the kernel, for Jupyter.")] = "lockstep",
    profile: Annotated[
        str | None, typer.Option(help="A site profile, or its file: its module lines are loaded first.")
    ] = None,
    partition: Annotated[str | None, typer.Option(help="Of the profile, for its own module lines.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the files, and write nothing.")] = False,
    json: Json = False,
) -> None:
    """Register this environment as a kernel of Jupyter, so that JupyterLab and JupyterHub offer it."""
    from lockstep.cluster.profiles import load_profile
    from lockstep.errors import BadInput
    from lockstep.kernelspec import Kernel, check, folder_of, register

    if profile is None and partition is not None:
        raise BadInput(f"--partition {partition} is one of a site: give --profile too")
    site = None if profile is None else load_profile(profile)
    made = Kernel(
        name=name,
        title="Lockstep" if name == "lockstep" else f"Lockstep ({name})",
        modules=site.module_lines(partition) if site else (),
        variables=site.environment if site else {},
    )
    folder = folder_of(name)
    if not dry_run:
        check(made)
        register(made)
    if json:
        typer.echo(jsonlib.dumps({"folder": str(folder), "files": made.files(), "written": not dry_run}, indent=1))
        return
    if not dry_run:
        typer.echo(f"kernel {name}: {folder}\nreload JupyterLab to see it; rm -r {folder} removes it")
        return
    for file, text in made.files().items():
        typer.echo(f"# {folder / file}\n{text}")
