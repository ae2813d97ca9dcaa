"""The pages name every option of their command, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from lockstep.cli import app

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("command", "elsewhere"), [("compare", set()), ("report", {"--workers"})])
def test_options(command: str, elsewhere: set[str]) -> None:
    """`elsewhere` are options of other commands that the page has reason to name."""
    found = typer.main.get_command(app).commands[command]  # type: ignore[attr-defined]
    options = {name for option in found.params for name in option.opts if name.startswith("--")}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", (DOCS / f"{command}.md").read_text(encoding="utf-8")))
    assert named - elsewhere == options - {"--help"}
