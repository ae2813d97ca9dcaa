"""`lockstep export`: a run's weights as a file for plain PyTorch. Nothing here imports torch."""

from __future__ import annotations

import json as jsonlib
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from lockstep.cli_options import Json


def export(
    run: Annotated[Path, typer.Argument(help="A run folder, also of a run that did not finish or still trains.")],
    out: Annotated[Path, typer.Argument(help="The file to write: model.safetensors.")],
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    json: Json = False,
) -> None:
    """Write the weights of a run under the plain model's names, for `model.load_state_dict(load_file(...))`."""
    from lockstep.train import export as exporting

    exported = exporting.export(run, out, force=force)
    for text in exported.warnings:
        typer.echo(f"lockstep: warning: {text}", err=True)
    if json:
        typer.echo(jsonlib.dumps(asdict(exported), indent=1))
        return
    which = "its final weights" if exported.finished else f"{Path(exported.source).name}: the run did not finish"
    typer.echo(f"{out}: {exported.tensors} tensors, {exported.bytes} bytes, after {exported.step} steps ({which})")
