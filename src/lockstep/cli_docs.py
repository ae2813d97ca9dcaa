"""`lockstep docs`: the documentation in the terminal. No torch."""

from __future__ import annotations

import json as jsonlib
import sys
from typing import Annotated

import typer

from lockstep.cli_options import Json


def docs(
    page: Annotated[
        str | None, typer.Argument(help="A page's name, or a chapter's number in the guide; not given: all are listed.")
    ] = None,
    json: Json = False,
) -> None:
    """Show a page of the documentation: formatted on a terminal, as it was written elsewhere (| less)."""
    from lockstep.doc_pages import every_page, find_page

    pages = every_page() if page is None else [find_page(page)]
    if json:
        typer.echo(jsonlib.dumps([{"name": one.name, "title": one.title, "path": str(one.path)} for one in pages]))
    elif page is None:
        width = max(len(one.name) for one in pages)
        for one in pages:
            typer.echo(f"{one.name:{width}}  {one.title}")
    else:
        text = pages[0].path.read_text(encoding="utf-8")
        if not sys.stdout.isatty():
            typer.echo(text, nl=False)
            return
        from rich.markdown import Markdown

        from lockstep.report.render import console

        console().print(Markdown(text))
