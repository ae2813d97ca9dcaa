"""What mkdocs calls while it builds the site: the page of all commands is made from the command line itself."""

from __future__ import annotations

import re
from typing import Any

import typer

from lockstep.cli import app
from lockstep.cli_help import EXAMPLES, MORE, PANELS, panel_of
from lockstep.cli_options import ListingCommand, listing_names

MARKER = "<!-- commands -->"
TEST_TITLE = re.compile(r'(?<=^```message) title="[^"]*"|(?<=^```sh) title="exit code \d+"', re.MULTILINE)
SPECIAL = re.compile(r"([|<>*_])")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the commands where a page asks for them; words that a test looks for are no title for readers."""
    return TEST_TITLE.sub("", markdown.replace(MARKER, reference()))


def reference() -> str:
    """Return all commands in their groups."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    parts = []
    for panel in (*PANELS, MORE):
        names = [name for name in commands if panel_of(name) == panel]
        if names:
            parts.append(f"## {panel}\n")
            parts += [_command(name, commands[name]) for name in names]
    return "\n".join(parts)


def _command(name: str, command: Any) -> str:
    lines = [f"### lockstep {name}\n", f"{command.help or ''}\n"]
    options = [_row(one) for one in command.params if one.name != "help"] if isinstance(command, ListingCommand) else []
    if options:
        lines += ["| | what it is | if not given |", "|---|---|---|", *options, ""]
    if name in EXAMPLES:
        lines += ["Examples:\n", *(f"- `{line}`" for line in EXAMPLES[name]), ""]
    return "\n".join(lines)


def _row(parameter: Any) -> str:
    text = getattr(parameter, "help", "") or ""
    for marker, names in listing_names().items():
        text = text.replace(marker, ", ".join(names))
    default = parameter.show_default if isinstance(parameter.show_default, str) else ""
    flags = ", ".join(f"`{flag}`" for flag in parameter.opts)
    return f"| {flags} | {_plain(text)} | {_plain(default)} |"


def _plain(words: str) -> str:
    return SPECIAL.sub(r"\\\1", words)
