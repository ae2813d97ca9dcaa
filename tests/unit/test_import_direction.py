"""Imports follow the flow of a run and never go back; the command line stays free of torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "lockstep"

# Each part may import from those on its right, and from itself. The order is DESIGN's arrow, read as
# "who may know whom": the command line knows everything, errors know nothing.
MAY_IMPORT = {
    "cli": "cli_bench cli_compare cli_options cli_report doctor launch report train strategies strategy_names world "
    "errors version",
    "cli_bench": "cli_options bench report errors",
    "cli_compare": "cli_options comparison report train strategies world errors strategy_names",
    "cli_report": "cli_options report train",
    "cli_options": "train",
    "__main__": "cli",
    "__init__": "comm recipe train world version",
    "comparison": "launch report train strategies errors",
    "doctor": "launch train world errors",
    "bench": "recipes recipe report train strategies data nn comm lanes world errors",
    "peers": "launch train strategies data recipe digest world errors",
    "report": "train errors version strategy_names",
    "launch": "train strategies comm world errors strategy_names",
    "train": "strategies data nn comm recipe digest world seeding errors version lanes strategy_names",
    "strategies": "data nn comm lanes digest recipe world errors strategy_names",
    "recipes": "recipe data",
    "recipe": "lanes errors",
    "world": "launch.detect launch.addresses comm errors",
    "comm": "launch.detect launch.addresses lanes errors",
    "nn": "comm lanes errors",
    "data": "lanes seeding errors",
    "lanes": "seeding errors",
    "digest": "",
    "seeding": "",
    "errors": "",
    "version": "",
    "strategy_names": "",
}
# These two parts of launch are read by `world`, so they must stand below it.
BELOW_WORLD = {"launch.detect", "launch.addresses"}


def part_of(module: str) -> str:
    """Return the part of the design that a module belongs to."""
    names = module.removeprefix("lockstep.").split(".")
    joined = ".".join(names[:2])
    return joined if joined in BELOW_WORLD else names[0]


def imports(path: Path) -> list[str]:
    """Return every lockstep module that a file imports, at any depth, unless only for type checking."""
    tree = ast.parse(path.read_text())
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = []
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lockstep"):
            base = node.module or ""
            names = [f"{base}.{alias.name}" for alias in node.names]
            found += [
                name if (SOURCE / Path(*name.split(".")[1:])).with_suffix(".py").exists() else base for name in names
            ]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.startswith("lockstep")]
    return [module for module in found if module != "lockstep"]


def files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_import_goes_back(path: Path) -> None:
    relative = path.relative_to(SOURCE).with_suffix("")
    own = part_of("lockstep." + ".".join(relative.parts))
    if own in BELOW_WORLD:
        allowed = {"errors"}
    else:
        allowed = {own, *MAY_IMPORT[own].split()}
        allowed |= BELOW_WORLD if "launch" in allowed else set()
    bad = [module for module in imports(path) if part_of(module) not in allowed]
    assert not bad, f"{relative} imports {bad}; {own} may import {sorted(allowed)}"


@pytest.mark.parametrize("statement", ["import lockstep", "import lockstep.cli", "import lockstep.launch.start"])
def test_starts_without_torch(statement: str) -> None:
    check = f"{statement}; import sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
