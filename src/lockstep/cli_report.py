"""`lockstep report`: tables and files from folders of earlier runs. Nothing here imports torch."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from lockstep.cli_options import Json


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs or of comparisons, also from other machines.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder to make for the report.", show_default="the comparison's own, else runs/..."),
    ] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard event files too.")] = False,
    json: Json = False,
) -> None:
    """Put earlier runs side by side: a table here, and a page, Markdown, JSON and a trace in a folder."""
    from lockstep.report.files import json_text, write_all
    from lockstep.report.gather import gather
    from lockstep.report.wording import written

    comparison = gather(runs)
    made = write_all(comparison, _folder(runs, out), tensorboard=tensorboard)
    if json:
        typer.echo(json_text({"out": written(made[0].parent), **comparison.as_json()}, indent=1), nl=False)
        return
    from lockstep.report.render import console
    from lockstep.report.terminal import show

    show(comparison, console())
    typer.echo(f"report: {written(made[0])}")


def _folder(runs: list[Path], out: Path | None) -> Path:
    """Return where the report goes: a new folder, or the one comparison that it is made of."""
    from lockstep.train.records import create_folder
    from lockstep.train.schema.run_json import NAME

    if out is None and len(runs) == 1 and not (runs[0] / NAME).is_file():
        return runs[0]
    return create_folder(out or Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-report")
